import assert from "node:assert/strict";
import { test } from "node:test";

import { formulaAt, withoutFormulas } from "../../../acp_gateway/web/app/text/formulas.js";
import { renderMarkdown } from "../../../acp_gateway/web/app/text/markdown.js";

/** Writes Markdown with formulas in guillemets, and other elements as tags. */
function written(source) {
  const h = (tag, attributes, ...children) => {
    const inside = children.flat(9).join("");
    return attributes?.title?.startsWith("A formula") ? `«${inside}»` : tag === "p" ? inside : `<${tag}>${inside}</${tag}>`;
  };
  return renderMarkdown(h, source).join("");
}

const FORMULAS = {
  "$a_1 + b_1$": "«$a_1 + b_1$»",
  "so $x*y*z$ and $w$, or ($n$)": "so «$x*y*z$» and «$w$», or («$n$»)",
  "\\(a_1 \\cdot b_1\\) holds": "«\\(a_1 \\cdot b_1\\)» holds",
  "$2x + 1$ and $2\\pi$": "«$2x + 1$» and «$2\\pi$»",
  "$$\\sum_i a_i\n= b_i$$": "«$$\\sum_i a_i\n= b_i$$»",
  "\\[ a_1 = b_1 \\]": "«\\[ a_1 = b_1 \\]»",
  "*so $x*y$ is*": "<em>so «$x*y$» is</em>",
  "_so \\(x_1\\) is_ **and $a**b$ is**": "<em>so «\\(x_1\\)» is</em> <strong>and «$a**b$» is</strong>",
  "- item $a_1$ and $b_1$": "<ul><li>item «$a_1$» and «$b_1$»</li></ul>",
  "[link $a_1$](https://a.b)": "<a>link «$a_1$»</a>",
};

const TEXT = {
  "it costs $5 and $6": "it costs $5 and $6",
  "$5, $6 or *$7*": "$5, $6 or <em>$7</em>",
  "5$ and 6$": "5$ and 6$",
  "from $5m to 6$ a year": "from $5m to 6$ a year",
  "$HOME/$USER and $PATH": "$HOME/$USER and $PATH",
  "US$ 5 and US$": "US$ 5 and US$",
  "\\$a_1 and b$": "$a_1 and b$",
  "`$a_1$` and `\\(b\\)`": "<code>$a_1$</code> and <code>\\(b\\)</code>",
  "see \\[1\\] and \\[2\\]": "see [1] and [2]",
  "$ a$ and $a $": "$ a$ and $a $",
  "$a\n\nb$": "$ab$",
  "a \\( b": "a ( b",
  "$$": "$$",
};

for (const [source, shown] of Object.entries(FORMULAS)) {
  test(`a formula keeps its source: ${JSON.stringify(source)}`, () => assert.equal(written(source), shown));
}

for (const [source, shown] of Object.entries(TEXT)) {
  test(`what is not a formula stays text: ${JSON.stringify(source)}`, () => assert.equal(written(source), shown));
}

test("a dollar sign behind a letter, a digit or another one opens nothing", () => {
  assert.deepEqual(["a", "5", "$", "_", "\\", " ", "(", ""].map((before) => formulaAt("$x$", before)), [null, null, null, null, null, "$x$", "$x$", "$x$"]);
});

test("the mask of formulas is as long as the text, and leaves code and all else", () => {
  assert.equal(withoutFormulas("*a $x*y$ `$z$`*", "*a $x*y$ `$z$`*"), "*a aaaaa `$z$`*");
  assert.equal(withoutFormulas("no *dollar*", "no *dollar*"), "no *dollar*");
});
