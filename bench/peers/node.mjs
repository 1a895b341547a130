// node node.mjs train '{"size": "M", "steps": 2}': the reference engine in Node, where it needs no bundle.

import * as reference from "./reference.mjs";

const [task, spec] = process.argv.slice(2);
console.log(JSON.stringify(await /** @type {Record<string, (spec: any) => Promise<any>>} */ (reference)[task](JSON.parse(spec ?? "{}"))));
