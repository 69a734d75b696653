"""Modules joined to one, run and compared with the modules by Node.js."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from acp_gateway.dialects.browser.assets import WEB, load_assets
from acp_gateway.dialects.browser.joined_modules import JOINED, LATER, join

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs Node.js")


def run(folder: Path, sources: dict[str, str], path: str) -> str:
    """Return what a module of a folder prints."""
    assert NODE is not None
    for name, source in {**sources, "package.json": '{"type": "module"}'}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(source)
    return subprocess.run([NODE, str(folder / path)], capture_output=True, text=True, check=True).stdout


MODULES = {
    "app/main.js": """\
/** The first one. */
import Thing, { a, b as other } from "../lib/thing.js";
import {
  count,
  twice,
} from "./count.js";
import * as all from "./count.js";
import "./effect.js";
const own = "main";
count();
console.log(own, new Thing().name, a, other, twice(count()), all.own(), `// ${/** @type {any} */ (a)}`);
console.log(new URL("../lib/x.png", import.meta.url).href.split("/").slice(-2).join("/"));
""",
    "app/count.js": """\
import { a } from "../lib/thing.js";
let calls = a;
const name = "count";
export const count = () => (calls += 1);
export function twice(n) { return 2 * n; }
export async function* later() {}
function local() { return name; }
export { local as own };
""",
    "app/effect.js": 'import "./count.js";\nconsole.log("effect");\n',
    "lib/thing.js": """\
export default class Thing { name = "thing" }
const c=40,d=2;export{c as a,d as b};
//# sourceMappingURL=thing.js.map
""",
}


@needs_node
def test_a_joined_module_does_what_the_modules_do(tmp_path: Path) -> None:
    expected = run(tmp_path, MODULES, "app/main.js")
    files = join(MODULES, "app/main.js")
    assert run(tmp_path, files, JOINED) == expected
    assert "main thing 40 2 84 count" in expected
    joined = files[JOINED]
    assert joined.count("class Thing") == 1
    assert "The first one" not in joined


@needs_node
def test_what_is_imported_later_is_in_a_file_of_its_own_and_shares_the_modules_of_the_first(tmp_path: Path) -> None:
    modules = {
        "app/main.js": 'import { count } from "./count.js";\n'
        'import("./dialog.js").then((it) => console.log("later", it.shown, count()));\n'
        "console.log(count());\n",
        "app/count.js": "let calls = 0;\nexport const count = () => (calls += 1);\n",
        "app/dialog.js": 'import { count } from "./count.js";\nimport { a } from "../lib/own.js";\n'
        'import("./other.js").then((it) => console.log(it.other));\n'
        "export const shown = [a, count()];\n",
        "app/other.js": 'export const other = "other";\n',
        "lib/own.js": 'export const a = "own";\n',
    }
    expected = run(tmp_path, modules, "app/main.js")
    files = join(modules, "app/main.js")
    assert run(tmp_path, files, JOINED) == expected == "1\nlater [ 'own', 2 ] 3\nother\n"
    assert ['"own"' in files[name] for name in (JOINED, LATER)] == [False, True]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"app/effect.js": 'import { x } from "./main.js";'}, "app/effect.js imports app/main.js, which imports it"),
        ({"app/effect.js": 'import "./missing.js";'}, "app/effect.js needs app/missing.js, which is not there"),
        ({"app/effect.js": "export let x = 1;"}, "app/effect.js has what can't be joined: export let x = 1;"),
        ({"app/count.js": "export const x = 1, count = 2;"}, "app/main.js needs count of app/count.js"),
        ({"lib/thing.js": "const a = 1;export{a};"}, "app/main.js needs default of lib/thing.js"),
        ({"app/effect.js": "export const { x } = {};"}, "app/effect.js has what can't be joined"),
        ({"app/effect.js": "export default 5;"}, "app/effect.js has what can't be joined"),
        ({"app/effect.js": 'export * from "./count.js";'}, "app/effect.js has what can't be joined"),
        ({"app/effect.js": 'export { count } from "./count.js";'}, "app/effect.js has what can't be joined"),
        ({"app/effect.js": "const x = () => import(name);"}, "app/effect.js has what can't be joined"),
        ({"app/effect.js": 'const x = () => import("./missing.js");'}, "the page needs app/missing.js"),
        ({"app/effect.js": "await 1;"}, "app/effect.js has what can't be joined: await 1;"),
    ],
)
def test_what_cant_be_joined_is_refused_by_name(changed: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason.replace('(', '[(]')}"):
        join(MODULES | changed, "app/main.js")


COMPARE = """
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
const acorn = createRequire(import.meta.url)("internal/deps/acorn/acorn/dist/acorn");
const [, , path] = process.argv;
const { sources, joined } = JSON.parse(readFileSync(path, "utf8"));
const options = { ecmaVersion: "latest", sourceType: "module" };
const places = ["start", "end", "raw"];
const isMarkup = (node) => node?.type === "TaggedTemplateExpression" && node.tag.name === "html";
const flat = (node) => JSON.parse(JSON.stringify(node), (key, value) =>
  (key === "cooked" || key === "raw") && typeof value === "string" ? value.replace(/\\n[ \\t]+/g, "\\n") : value);
const bare = (node) => JSON.stringify(node, (key, value) =>
  (places.includes(key) ? undefined : isMarkup(value) ? { ...value, quasi: flat(value.quasi), tag: "markup" } : value));
const isModule = (node) => /^(Import|Export)/.test(node.type);
const modules = Object.entries(sources).map(([name, source]) => {
  const { body } = acorn.parse(source, options);
  const wanted = body.map((node) => node.declaration ?? node).filter((node) => !isModule(node)).map(bare);
  const imports = body.filter((node) => node.type === "ImportDeclaration" && node.specifiers.length).length;
  return { name, wanted, imports };
});
const bodies = joined.flatMap((text) => acorn.parse(text, options).body);
const found = bodies.filter((node) => !isModule(node)).map((one) => one.declarations[0]);
for (const { id, init } of found) {
  const body = init.callee.body.body.slice(0, -1).map(bare);
  const same = modules.find(({ wanted, imports }) =>
    body.length === imports + wanted.length &&
    wanted.every((text, i) => text === body[imports + i] || /"(MetaProperty|ImportExpression)"/.test(text)));
  console.log(same?.name ?? id.name, same ? "same" : "other");
}
"""


@needs_node
def test_the_joined_page_has_each_statement_of_its_modules(tmp_path: Path) -> None:
    assert NODE is not None
    sources = {path.relative_to(WEB).as_posix(): path.read_text() for path in WEB.rglob("*.js")}
    joined = [asset.content.decode() for asset in load_assets(WEB).values() if asset.name in (JOINED, LATER)]
    (tmp_path / "page.json").write_text(json.dumps({"sources": sources, "joined": joined}))
    (tmp_path / "compare.mjs").write_text(COMPARE)
    command = [NODE, "--expose-internals", str(tmp_path / "compare.mjs"), str(tmp_path / "page.json")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line for line in said if not line.endswith(" same")] == []
    assert len({*said}) == len(said) > 50
