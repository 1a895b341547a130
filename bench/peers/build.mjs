// node build.mjs FOLDER: bundle each peer into one module below FOLDER.

import { build } from "esbuild";

await build({
  entryPoints: ["reference.mjs", "tfjs.mjs", "jaxjs.mjs"],
  outdir: process.argv[2],
  outExtension: { ".js": ".mjs" },
  bundle: true,
  format: "esm",
  minify: true,
  splitting: false,
  external: ["node:*", "fs", "path", "util", "crypto", "node-fetch", "string_decoder"],
  logLevel: "warning",
});
