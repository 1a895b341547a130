/** `make dist` copies the library here. */
export { default } from "uplot";
