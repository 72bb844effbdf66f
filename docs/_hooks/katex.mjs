// Formulas in, one JSON line each; HTML out, or what is wrong with the formula.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const katex = createRequire(process.argv[2])("katex");
for await (const line of createInterface({ input: process.stdin })) {
  const { formula, display } = JSON.parse(line);
  let answer;
  try {
    answer = { html: katex.renderToString(formula, { displayMode: display, throwOnError: true, strict: "ignore" }) };
  } catch (problem) {
    answer = { problem: problem.message };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
