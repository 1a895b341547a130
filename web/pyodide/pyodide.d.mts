/** Types of Pyodide; `make dist` lays its code here. */
export * from "pyodide";
