// Formulas in, as JSON: [[formula, whether it has a line of its own], ...].
// Out, in their order: the HTML of each, or what is wrong with it.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const katex = createRequire(process.argv[2])("katex");

function drawing([formula, displayMode]) {
  try {
    return { html: katex.renderToString(formula, { displayMode, throwOnError: true, strict: "ignore" }) };
  } catch (problem) {
    return { problem: problem.message };
  }
}

process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, "utf-8")).map(drawing)));
