/** Types of the library; `make dist` copies its code here. */
export * from "comlink";
