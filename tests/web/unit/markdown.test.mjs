import assert from "node:assert/strict";
import { test } from "node:test";

import { markdownText, renderMarkdown, safeImage, safeLink, tokens } from "../../../acp_gateway/web/app/text/markdown.js";
import { segmentsOf } from "../../../acp_gateway/web/app/text/markdown_lexer.js";
import { forSeeds } from "./helpers.mjs";

const h = (tag, attributes, ...children) => ({ tag, attributes: attributes ?? {}, children: children.flat(9) });

/** Writes vnodes as text, with attributes in order of their names; `dir=auto`, which most have, is left out. */
function written(node) {
  if (Array.isArray(node)) return node.map(written).join("");
  if (typeof node === "string") return node;
  const attributes = Object.entries(node.attributes).filter(([, value]) => value !== "auto").map(([name, value]) => ` ${name}=${value}`);
  return `<${node.tag}${attributes.sort().join("")}>${written(node.children)}</${node.tag}>`;
}

const html = (source) => written(renderMarkdown(h, source));

/** What may be rendered: attributes by tag. */
const ALLOWED = {
  p: ["dir"],
  h2: ["class", "dir"],
  strong: [],
  em: [],
  del: [],
  br: [],
  hr: [],
  blockquote: ["dir"],
  details: ["open"],
  summary: ["dir"],
  kbd: [],
  sub: [],
  sup: [],
  code: ["title"],
  ul: ["dir"],
  table: ["dir"],
  thead: [],
  tbody: [],
  tr: [],
  ol: ["dir", "start"],
  li: ["class", "dir"],
  pre: ["data-language"],
  div: ["aria-label", "class", "dir", "role", "tabindex"],
  span: ["class", "title"],
  th: ["class", "dir"],
  td: ["class", "dir"],
  a: ["href", "title", "target", "rel"],
  img: ["src", "alt"],
  input: ["type", "disabled", "checked", "aria-label"],
};

/** Checks each vnode: tag, attributes, values, and that all text is a string. */
function check(node, source) {
  if (typeof node === "string") return;
  assert.ok(Object.hasOwn(ALLOWED, node.tag), `${node.tag} from ${source}`);
  for (const [name, value] of Object.entries(node.attributes)) {
    assert.ok(ALLOWED[node.tag].includes(name), `${node.tag} ${name} from ${source}`);
    assert.ok(["string", "boolean", "number"].includes(typeof value), name);
    if (name === "class") assert.match(value, /^(?:plain|no-link|table|task|level-[1-6]|(?:align-(?:left|right|center))?(?: ?is-long)?)$/);
    if (name === "dir") assert.match(value, /^(?:auto|rtl)$/);
    if (name === "data-language") assert.match(value, /^[A-Za-z0-9+#._-]{1,24}$/);
  }
  const { href, rel, target, src } = node.attributes;
  if (node.tag === "a") {
    assert.match(href, /^(?:https?:\/\/[^/@]+|mailto:)/, source);
    assert.deepEqual([rel, target], ["noopener noreferrer", "_blank"]);
  }
  if (node.tag === "img") assert.match(src, /^data:image\/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+=*$|^blob:/);
  if (node.tag === "input") assert.deepEqual([node.attributes.type, node.attributes.disabled], ["checkbox", true]);
  node.children.forEach((child) => check(child, source));
}

const checked = (source) => {
  const start = JSON.stringify(source).slice(0, 200);
  renderMarkdown(h, source).forEach((node) => check(node, start));
};

const CORPUS = [
  "<script>alert(1)</script>",
  "<img src=x onerror=alert(1)>",
  "<svg onload=alert(1)><script>alert(1)</script></svg>",
  "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
  "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
  "<a href='javascript:alert(1)'>x</a>",
  "<!-- --><img src=x onerror=alert(1)>",
  "<![CDATA[<script>alert(1)</script>]]>",
  "<?xml version='1.0'?><x/>",
  "<style>@import 'http://evil'</style>",
  "<base href=//evil>",
  "<form action=//evil><button>go</button></form>",
  "[x](javascript:alert(1))",
  "[x](JaVaScRiPt:alert(1))",
  "[x](java\nscript:alert(1))",
  "[x](java&#115;cript:alert(1))",
  "[x](&#x6A;avascript:alert(1))",
  "[x](javascript&colon;alert(1))",
  "[x](\u0001javascript:alert(1))",
  "[x]( javascript:alert(1))",
  "[x](<javascript:alert(1)>)",
  "[x](data:text/html,<script>alert(1)</script>)",
  "[x](data:text/html;base64,PHNjcmlwdD4=)",
  "[x](vbscript:msgbox(1))",
  "[x](file:///etc/passwd)",
  "[x](//evil.example)",
  "[x](/login)",
  "[x](#acpgwp_x)",
  "[x](blob:https://a/b)",
  "[x](https://user:secret@evil.example)",
  "[x](https://good.example\\@evil.example)",
  "[x](https://a 'onmouseover=alert(1)')",
  '[x](https://a "\\" onmouseover=alert(1) \\"")',
  "[x]: javascript:alert(1)\n\n[x]",
  "[x][y]\n\n[y]: <javascript:alert(1)>",
  "<javascript:alert(1)>",
  '<https://a"onmouseover=alert(1)>',
  'https://a/"onmouseover=alert(1)',
  "javascript:alert(1)",
  "![x](https://evil.example/pixel.png)",
  "![x](javascript:alert(1))",
  "![x](data:image/svg+xml;base64,PHN2Zz4=)",
  "![x](data:image/svg+xml,<svg onload=alert(1)>)",
  "![x](data:text/html;base64,PHNjcmlwdD4=)",
  '![x](data:image/png;base64,AAAA"onerror=alert(1))',
  "![x](data:image/png;base64,AAAA)",
  '!["onerror=alert(1)](data:image/png;base64,AAAA)',
  "[![x](https://evil.example/p.png)](javascript:alert(1))",
  '```html" onmouseover=alert(1)\n<script>alert(1)</script>\n```',
  "```<script>\nx\n```",
  "`<script>alert(1)</script>`",
  "    <script>alert(1)</script>",
  "# <img src=x onerror=alert(1)>",
  "> <img src=x onerror=alert(1)>",
  "- <img src=x onerror=alert(1)>\n- [x] <b>",
  "|<script>|a|\n|:-:|-:|\n|<img src=x onerror=alert(1)>|[x](javascript:1)|",
  "99999999999999999999. x",
  "1e3. x",
  "[__proto__]: https://a\n\n[__proto__] [constructor]",
  "&lt;script&gt;alert(1)&lt;/script&gt;",
  "&#60;img src=x onerror=alert(1)&#62;",
  "&#0; &#xD800; &#x110000; &#99999999;",
  "\u202egnirts\u202c `\u202egnirts` \u2066x\u2069",
  "{{constructor.constructor('alert(1)')()}}",
  "<details ontoggle=alert(1) open>",
  "<details><summary><img src=x onerror=alert(1)></summary>\n\n<script>alert(1)</script>\n\n</details>",
  "<b onclick=x>a</b> <kbd><script></kbd> <constructor>a</constructor>",
  "[^1] [^__proto__]\n\n[^1]: <script>alert(1)</script>\n[^__proto__]: [x](javascript:1)",
];

test("the corpus of attacks renders as allowed tags and attributes only", () => {
  for (const source of CORPUS) checked(source);
});

test("random joins of attacks and marks render as allowed tags and attributes only", () => {
  const marks = [
    "*",
    "**",
    "_",
    "~~",
    "`",
    "```\n",
    "[",
    "](",
    ")",
    "![",
    "<",
    ">",
    "\n",
    "\n\n",
    "> ",
    "- ",
    "1. ",
    "# ",
    "|",
    "\\",
    "&",
    " ",
  ];
  forSeeds(1500, (random) => {
    let source = "";
    for (let n = 1 + random.below(8); n > 0; n -= 1)
      source += random.maybe(0.4) ? random.pick(CORPUS) : random.pick(marks);
    checked(source);
  });
});

test("values that are not strings are shown, never taken for vnodes", () => {
  for (const value of [null, undefined, 5, true, { tag: "script" }, ["x"], { toString: null }]) {
    renderMarkdown(h, value).forEach((node) => check(node, typeof value));
  }
  assert.equal(html(null), "");
  assert.equal(html({ tag: "b" }), '<p>{"tag":"b"}</p>');
});

test("tags, comments and character references are text", () => {
  assert.equal(html("a <b onclick=x>bold</b>"), "<p>a <b onclick=x>bold</b></p>");
  assert.equal(renderMarkdown(h, "a <u>c</u>")[0].children.length, 1);
  assert.equal(html("<div>\n\n<!-- hidden -->"), "<p><div></p><p><!-- hidden --></p>");
  assert.equal(html("&lt;b&gt; &amp;amp; &copy; &unknown; `&lt;`"), "<p><b> &amp; © &unknown; <code>&lt;</code></p>");
});

test("the usual marks of Markdown become their tags", () => {
  assert.equal(html("# A *b*\n\n###### c"), "<h2 class=level-1>A <em>b</em></h2><h2 class=level-6>c</h2>");
  assert.equal(html("**a** ~~b~~ `c`  \nd\ne"), "<p><strong>a</strong> <del>b</del> <code>c</code><br></br>d\ne</p>");
  assert.equal(html("snake_case_name 2*3*4"), "<p>snake_case_name 2<em>3</em>4</p>");
  assert.equal(html("> a\n> > b"), "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>");
  assert.equal(html("---"), "<hr></hr>");
  assert.equal(html("```js x\nlet a;\n```"), "<pre data-language=js><code>let a;</code></pre>");
  assert.equal(html("    a\n    b"), "<pre><code>a\nb</code></pre>");
});

test("lists keep their kind, their start and their boxes", () => {
  assert.equal(html("- a\n  - b"), "<ul><li>a<ul><li>b</li></ul></li></ul>");
  assert.equal(html("3. a\n4. b"), "<ol start=3><li>a</li><li>b</li></ol>");
  const box = (checked) => `<li class=task><input aria-label=${checked ? "done" : "to do"} checked=${checked} disabled=true type=checkbox></input>`;
  assert.equal(html("- [x] a\n- [ ] b"), `<ul>${box(true)}a</li>${box(false)}b</li></ul>`);
});

test("tags without attributes that stand for a mark become what it becomes", () => {
  assert.equal(html("<b>a</b> <EM>b</EM> x<sub>2</sub> <kbd>Ctrl</kbd>"), "<p><strong>a</strong> <em>b</em> x<sub>2</sub> <kbd>Ctrl</kbd></p>");
  assert.equal(html("a<br>b<br/>c"), "<p>a<br></br>b<br></br>c</p>");
  assert.equal(html("<b>a <i>b</i></b> `<br>`"), "<p><b>a <em>b</em></b> <code><br></code></p>");
});

test("footnotes stand where they are written, with the mark that refers to them", () => {
  assert.equal(
    html("a[^1] b[^long note] [^x]\n\n[^1]: One *note*,\nwith two lines.\n[^two]: Another.\n\nEnd[^TWO]"),
    "<p>a<sup>1</sup> b[^long note] [^x]</p><p><sup>1</sup> One <em>note</em>,\nwith two lines.</p>" +
      "<p><sup>two</sup> Another.</p><p>End<sup>TWO</sup></p>",
  );
  assert.equal(html("[^0-9] and [^a]: text"), "<p>[^0-9] and [^a]: text</p>");
});

test("what is in details is folded, however long it is and before its end has come", () => {
  const folded = (summary, inside, open = false) => `<details open=${open}><summary>${summary}</summary>${inside}</details>`;
  assert.equal(
    html("a\n<details>\n<summary>The *log*</summary>\n\n- b\n\n</details>\nc"),
    `<p>a\n</p>${folded("<p>The <em>log</em></p>", "<ul><li>b</li></ul>")}<p>c</p>`.replace("a\n", "a"),
  );
  assert.equal(html("<details open><summary>A</summary>\nb"), folded("<p>A</p>", "<p>b</p>", true));
  assert.equal(
    html("<details>\n<details><summary>In</summary>\nb\n</details>\n</details>"),
    folded("Details", folded("<p>In</p>", "<p>b</p>")),
  );
  const long = "A line of a log.\n".repeat(2000);
  const [node, after] = renderMarkdown(h, `<details><summary>A</summary>\n\n${long}\n</details>\n\nb`);
  assert.deepEqual([node.tag, written(after)], ["details", "<p>b</p>"]);
  assert.equal(html("```\n<details>\n```"), "<pre><code><details></code></pre>");
  assert.equal(html("<details>\n    <summary>A</summary>\nb\n\t</details>"), folded("<p>A</p>", "<p>b</p>"));
  assert.equal(html("    <details>"), "<pre><code><details></code></pre>");
  assert.equal(html("</details>\n\n<summary>a</summary>"), "<p></details></p><p><summary>a</summary></p>");
  checked("<details>\n".repeat(5000));
});

test("each text has the direction of its first letter, and so has what holds texts", () => {
  const directions = (source) => JSON.stringify(renderMarkdown(h, source)).match(/"dir":"\w+"/g);
  assert.deepEqual(directions("- שלום\n- a"), ['"dir":"rtl"', '"dir":"auto"', '"dir":"auto"']);
  assert.deepEqual(directions("1. a שלום"), ['"dir":"auto"']);
  assert.deepEqual(directions("> **مرحبا**"), ['"dir":"rtl"', '"dir":"auto"']);
  assert.deepEqual(directions("|שם|b|\n|-|-|"), ['"dir":"rtl"', '"dir":"auto"', '"dir":"auto"']);
  // Also its place, and where its scrolling begins.
  assert.match(JSON.stringify(renderMarkdown(h, "|שם|b|\n|-|-|")[0].attributes), /"dir":"rtl"/);
});

test("a cell with a long text is named so, others stay in one line", () => {
  const cells = html("|a|b|\n|-|-:|\n|-0.00012345678901234|A sentence of more than a few words.|");
  assert.match(cells, /<td>-0\.0{3}/);
  assert.match(cells, /<td class=align-right is-long>A sentence/);
});

test("tables keep their alignment", () => {
  assert.equal(
    html("|a|b|\n|:-|-|\n|1|**2**|"),
    "<div aria-label=Table class=table role=group tabindex=0><table><thead><tr><th class=align-left>a</th><th>b</th></tr></thead>" +
      "<tbody><tr><td class=align-left>1</td><td><strong>2</strong></td></tr></tbody></table></div>",
  );
});

const link = (href, text) => `<a href=${href} rel=noopener noreferrer target=_blank title=${href}>${text}</a>`;

test("links open elsewhere, and bare ones end before punctuation", () => {
  assert.equal(html("[a](https://b.example/c)"), `<p>${link("https://b.example/c", "a")}</p>`);
  assert.equal(html("<mailto:a@b.example>"), `<p>${link("mailto:a@b.example", "mailto:a@b.example")}</p>`);
  assert.equal(
    html("(see https://b.example/x_(y).)"),
    `<p>(see ${link("https://b.example/x_(y)", "https://b.example/x_(y)")}.)</p>`,
  );
  assert.equal(html("[a](https://b.example/?x=1&amp;y=2)"), `<p>${link("https://b.example/?x=1&y=2", "a")}</p>`);
  assert.equal(html("[a][1]\n\n[1]: https://b.example/"), `<p>${link("https://b.example/", "a")}</p>`);
});

test("a link that may not be followed is text that tells its address", () => {
  assert.equal(html("[a](src/a.py)"), "<p><span class=no-link title=src/a.py>a</span></p>");
  assert.equal(html("[a](\u202ejavascript:x)"), "<p><span class=no-link title=⟨U+202E⟩javascript:x>a</span></p>");
});

test("only an image that needs no request is shown, another one is a link", () => {
  assert.equal(html("![a](data:image/png;base64,AAAA)"), "<p><img alt=a src=data:image/png;base64,AAAA></img></p>");
  assert.equal(html("![a](https://b.example/c.png)"), `<p>${link("https://b.example/c.png", "a")}</p>`);
  assert.equal(html("![](https://b.example/c.png)"), `<p>${link("https://b.example/c.png", "image")}</p>`);
});

test("a picture that is larger than a paragraph may be is shown, with the text around it", () => {
  const data = `data:image/png;base64,${"A".repeat(20_000)}`;
  assert.equal(html(`*a* ![A curve](${data}) b`), `<p><em>a</em> <img alt=A curve src=${data}></img> b</p>`);
  assert.match(html(`![a](${data.replace("png", "svg")}) b`), /^<p><span class=no-link/);
});

test("safeLink lets through http, https and mailto only", () => {
  for (const url of [
    "https://a.example/",
    "http://a.example:8080/x?y#z",
    "mailto:a@b.example",
    " https://a.example/ ",
  ]) {
    assert.equal(safeLink(url), url.trim());
  }
  const bad = [
    "javascript:1",
    "data:,x",
    "ftp://a",
    "https:",
    "https:/a",
    "https:///a",
    "http:\\\\a",
    "//a",
    "/a",
    "a",
    "",
    null,
    7,
  ];
  for (const url of [
    ...bad,
    "https://u:p@a",
    "https://u@a",
    "ht\ntps://a",
    "https://a b",
    "https://[",
    `https://a/${"x".repeat(5000)}`,
  ]) {
    assert.equal(safeLink(url), null, String(url));
  }
});

test("safeImage lets through bitmaps in data: and blob: only", () => {
  for (const url of [
    "data:image/png;base64,AA==",
    "data:image/webp;base64,AAAA",
    "blob:https://a.example:7443/1b-2c",
  ]) {
    assert.equal(safeImage(url), url);
  }
  for (const url of [
    "data:image/svg+xml;base64,AAAA",
    "data:image/png,x",
    "https://a/b.png",
    'data:image/png;base64,A"A',
    "blob:x",
    null,
  ]) {
    assert.equal(safeImage(url), null, String(url));
  }
});

test("hidden characters are visible in code", () => {
  assert.equal(html("`a\u202eb`"), "<p><code>a⟨U+202E⟩b</code></p>");
  assert.equal(html("```\na\u200bb\n```"), "<pre><code>a⟨U+200B⟩b</code></pre>");
});

/** Texts that take some Markdown parsers quadratic or exponential time, or all of the stack. */
const SIZE = 32 * 1024;
const times = (text, size = SIZE) => text.repeat(Math.floor(size / text.length));
const lines = (count, line) => Array.from({ length: count }, (_, i) => line(i)).join("\n");
const PATHOLOGICAL = {
  "open brackets": times("["),
  "nested brackets": "[".repeat(SIZE / 2) + "]".repeat(SIZE / 2),
  "open links": times("[a]("),
  "link titles": times('[a](b "'),
  "link parentheses": times("[a](("),
  "open images": times("!["),
  "backtick runs": lines(350, (i) => "`".repeat(i + 1)),
  "code spans": times("`a``b"),
  "nested quotes": times("> "),
  "quotes without spaces": times(">"),
  "lazy quotes": times("> a\nb\n"),
  "nested lists": lines(300, (i) => `${" ".repeat(2 * i)}- a`),
  "lists on a line": times("1. "),
  "quotes and lists": `${"> - ".repeat(1000)}a`,
  stars: times("*a"),
  "stars and underscores": times("*a _b"),
  "doubled stars": times("a**b"),
  "dollar signs": "$a ".repeat(20_000),
  "dollar signs in pairs": "$$a".repeat(20_000),
  "open formulas": "\\(a ".repeat(16_000),
  "formulas and emphasis": "*a $x_1$ _b ".repeat(5000),
  "nested emphasis": `${"*_".repeat(5000)}a${"_*".repeat(5000)}`,
  tildes: times("~~a ~b"),
  "open tags": times("<a "),
  "open comments": times("<!--"),
  "less than": times("<"),
  addresses: `${times("a.")}@`,
  "bare links": times("http://"),
  definitions: times("[a]: b\n"),
  "open definitions": times("[a]: <"),
  references: lines(1500, (i) => `[a${i}]: b`) + times("[zz] *", 20000),
  table: `|a|b|\n|-|-|\n${times("|a|b|\n")}`,
  columns: `${"|a".repeat(5000)}|\n${"|-".repeat(5000)}|`,
  numbers: lines(9000, (i) => `${i}. a`),
  "spaces before line feeds": times("a   \n"),
  "long run of spaces": `a${" ".repeat(SIZE)}b`,
  "what looks like a rule": `${times("- - - ")}a`,
  fences: times("```\n"),
  details: times("<details>\n"),
  "spaces before a letter": `${" ".repeat(SIZE)}a`,
  "spaces after a tag": `<details>${" ".repeat(SIZE)}a`,
  "spaces after ends of summaries": `<summary>${times(`</summary>${" ".repeat(200)}`)}a`,
  footnotes: times("[^a]: b\n"),
  "open footnotes": times("[^a"),
  "spaces in footnotes": times(`[^a]: ${" ".repeat(200)}\n`),
  "open pictures": times("![a](data:image/png;base64,"),
  "tags without an end": times("<b>a"),
};

/** Counts the searches by regular expressions that a function makes. */
function searches(body) {
  const { exec } = RegExp.prototype;
  let count = 0;
  RegExp.prototype.exec = function counted(text) {
    count += 1;
    return exec.call(this, text);
  };
  try {
    body();
  } finally {
    RegExp.prototype.exec = exec;
  }
  return count;
}

test("pathological texts take a bounded number of searches", () => {
  for (const [name, source] of Object.entries(PATHOLOGICAL)) {
    const count = searches(() => checked(source));
    assert.ok(count <= 400_000, `${name}: ${count} searches`);
  }
});

test("a long text without tricks is parsed to its end", () => {
  const paragraph = "Some *words*, `code_with_names`, a [link](https://b.example/) and **more** of them.\n";
  const items = "- one **item**\n  - with `another` below\n1. and a number\n\n";
  const found = tokens(`${paragraph}\n${items}\n\`\`\`\ncode\n\`\`\`\n\n`.repeat(300).slice(0, 64 * 1024));
  assert.ok(found.every(({ type }) => type !== "plain"));
  const end = JSON.stringify(found.slice(-12));
  for (const type of ["strong", "em", "codespan", "link", "code", "list"])
    assert.ok(end.includes(`"type":"${type}"`), type);
});

test("a text beyond the steps leaves what follows it as it should be", () => {
  const nodes = renderMarkdown(h, `${"*a".repeat(2000)}\n\n**b**\n`);
  assert.equal(written(nodes.at(-1)), "<p><strong>b</strong></p>");
});

test("nesting ends at a depth, and the text beyond it is shown", () => {
  const depth = (node) => (typeof node === "string" ? 0 : 1 + Math.max(0, ...node.children.map(depth)));
  for (const source of [
    `${"> ".repeat(200)}deep`,
    `${"- ".repeat(200)}deep`,
    `${"*_".repeat(100)}deep${"_*".repeat(100)}`,
  ]) {
    const nodes = renderMarkdown(h, source);
    assert.ok(Math.max(...nodes.map(depth)) < 60, source.slice(0, 10));
    assert.match(written(nodes), /deep/);
  }
});

test("text beyond the limit follows as it is", () => {
  const source = `${"a *b*\n\n".repeat(20_000)}the **end**`;
  const nodes = renderMarkdown(h, source);
  const last = nodes.at(-1);
  assert.deepEqual([last.tag, last.attributes.class], ["div", "plain"]);
  assert.match(last.children[0], /the \*\*end\*\*$/);
  assert.equal(nodes[0].children[1].tag, "em");
  assert.ok(nodes.length < 20_000);
});

test("segments join to the text, and all but the last stay when it grows", () => {
  const paragraphs = [
    "some words\n\n",
    "- a list\n\n- of two\n\n",
    "```\ncode\n\nmore\n```\n\n",
    "> quote\n\n",
    "    ```\n\nx\n\n",
    "long\n".repeat(100),
  ];
  forSeeds(100, (random) => {
    let source = "";
    for (let n = 0; n < 60; n += 1) source += random.pick(paragraphs);
    const { segments, rest } = segmentsOf(source);
    assert.equal(segments.join("") + rest, source);
    assert.ok(segments.length > 1);
    const cut = random.below(source.length);
    const before = segmentsOf(source.slice(0, cut)).segments;
    assert.deepEqual(before.slice(0, -1), segments.slice(0, Math.max(0, before.length - 1)));
  });
});

test("a fence, a list and a reference are whole across blank lines", () => {
  const code = `\`\`\`\n${"line\n\n".repeat(1000)}\`\`\`\n`;
  assert.equal(segmentsOf(code).segments.length, 1);
  const list = "1. item\n\n".repeat(400);
  assert.equal(renderMarkdown(h, list).filter(({ tag }) => tag === "ol").length, 1);
  const far = `[a][x]\n\n${"words and words\n\n".repeat(500)}[x]: https://b.example/\n`;
  assert.equal(written(renderMarkdown(h, far)[0]), `<p>${link("https://b.example/", "a")}</p>`);
});

test("with a cache a growing text renders the same, and returns what it rendered before", () => {
  const source = `${"Some *words* of a paragraph.\n\n".repeat(200)}[x]: https://b.example/\n\n[x]\n`;
  const cache = new Map();
  let first = null;
  for (let size = 0; size < source.length; size += 97) {
    const nodes = renderMarkdown(h, source.slice(0, size), cache);
    assert.equal(written(nodes), html(source.slice(0, size)));
    const { segments } = segmentsOf(source.slice(0, size));
    if (segments.length > 1 && !source.slice(0, size).includes("[x]:")) {
      first ??= nodes[0];
      assert.equal(nodes[0], first);
    }
    assert.ok(cache.size <= segments.length + 1);
  }
  assert.equal(written(renderMarkdown(h, source, cache)), html(source));
});

test("Markdown as text has no marks, and a space between blocks", () => {
  const source = "# Done\n\nThe **sum** is `3`.\n\n- [x] one\n- [ ] two\n\n```js\nx\n```\n[a](https://b.example) ![c](data:x)";
  assert.equal(markdownText(source), "Done The sum is 3. done one to do two x a c");
});
