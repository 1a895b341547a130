/** `make dist` lays Pyodide here. */
export * from "pyodide";
