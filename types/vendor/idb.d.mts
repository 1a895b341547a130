/** `make dist` copies the library here. */
export * from "idb";
