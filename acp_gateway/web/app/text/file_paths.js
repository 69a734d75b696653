/** Paths of files that agents name, what a file is by its name, and its address at the gateway. Pure. */
import { plain } from "./format.js";

/** Longest path that becomes a link, in characters: the page's address has to hold it. */
const LONGEST = 500;

/** Pictures of one tool call that are shown, and characters of its output in which they are looked for. */
const MOST_PICTURES = 4;
const MOST_SEARCHED = 4000;

const PICTURES = "png jpg jpeg gif webp avif bmp apng svg";

/** Endings by kind; what else is text is seen by its content. */
const KINDS = new Map(
  [
    ["picture", PICTURES],
    ["audio", "mp3 wav ogg oga opus flac m4a aac"],
    ["video", "mp4 m4v webm mov ogv"],
    ["pdf", "pdf"],
    ["table", "csv tsv"],
    ["notebook", "ipynb"],
    ["page", "html htm"],
    ["markdown", "md markdown"],
  ].flatMap(([kind, endings]) => endings.split(" ").map((ending) => [ending, kind])),
);

/** Endings of names without a slash that are taken for files: others may be `os.path` or `example.com`. */
const KNOWN = new Set([
  ...KINDS.keys(),
  ..."py pyi js mjs ts tsx jsx css sh c h cc cpp hpp cu java kt go rs rb php sql r jl json jsonl yaml yml toml ini cfg txt log rst tex xml lock ipynb".split(" "),
]);

const NOT_FILES = new Set(["console.log", "node.js", "next.js", "vue.js", "three.js", "d3.js"]);

const PATH = /^((?:\.{1,2}\/|\/)?[\p{L}\p{N}_@+.,=-][\p{L}\p{N}_@+.,=~ -]*(?:\/[\p{L}\p{N}_@+.,=~ -]+)*)(?::(\d{1,7})(?::\d+)?(?:-\d+)?|#L(\d{1,7})(?:-L\d+)?)?$/u;

/** The git worktree of its own that a session's directory is in, or null. @param {string} path */
export function treeOf(path) {
  return /^.*\/\.worktrees\/[^/]+/.exec(path)?.[0] ?? null;
}

/** What a file is, by its name: a kind of KINDS, else "text". @param {string} path */
export function kindOfFile(path) {
  return KINDS.get(endingOf(path)) ?? "text";
}

/** @param {string} path */
function endingOf(path) {
  return /\.([A-Za-z0-9]{1,8})$/.exec(path)?.[1].toLowerCase() ?? "";
}

/**
 * Reads a text that names a file, perhaps with a line.
 * @param {unknown} text
 * @returns {{path: string, line: number|null}|null} null for any other text.
 */
export function pathIn(text) {
  const found = PATH.exec(plain(text).trim().replace(/^file:\/\/(?=\/)/, ""));
  if (found === null || found[1].length > LONGEST) return null;
  const [, path, line, other] = found;
  const name = path.split("/").pop() ?? "";
  const ending = endingOf(name);
  if (ending === "" || NOT_FILES.has(path.toLowerCase()) || /^[\d.,]+$/.test(name)) return null;
  const [first] = path.split("/");
  if (path.includes("/") ? /\.(?:com|org|net|io|dev|ai|co)$/i.test(first) : !KNOWN.has(ending)) return null;
  return { path, line: Number(line ?? other ?? 0) || null };
}

/**
 * Returns the pictures that a tool call has written or named, each once.
 * @param {any} tool
 * @returns {string[]} paths.
 */
export function picturesOf(tool) {
  if (tool.status !== "completed") return [];
  const input = tool.rawInput ?? {};
  const named = [
    ...(tool.locations ?? []).map((/** @type {any} */ place) => place.path),
    ...["file_path", "filePath", "path", "filename"].map((name) => input[name]),
    ...(tool.content ?? []).map((/** @type {any} */ entry) => (entry.type === "diff" ? entry.path : null)),
  ].filter((path) => typeof path === "string" && path !== "");
  const output = [
    ...(tool.content ?? []).map((/** @type {any} */ entry) => entry.part?.text),
    ...Object.values(tool.terminals ?? {}).map((/** @type {any} */ terminal) => terminal.output),
  ];
  const words = output.filter((text) => typeof text === "string").join("\n").slice(-MOST_SEARCHED);
  const told = words.match(new RegExp(`[^\\s"'\`()<>\\[\\]:=,*]+\\.(?:${PICTURES.split(" ").join("|")})(?![\\w.])`, "gi")) ?? [];
  const found = [...named, ...told].filter((path) => kindOfFile(path) === "picture" && path.length <= LONGEST && !path.includes("//"));
  return [...new Set(found)].slice(0, MOST_PICTURES);
}

/**
 * Returns the address of a file, relative to the page.
 * @param {{sessionId: string, machine?: string|null, path: string, form?: "view"|"download"|"zip"}} file
 */
export function fileUrl({ sessionId, machine = null, path, form = "view" }) {
  const isThere = machine !== null && sessionId.startsWith(`${machine}/`);
  const query = new URLSearchParams({ session: isThere ? sessionId.slice(machine.length + 1) : sessionId, path, as: form });
  return `./${isThere ? `nodes/${machine}/` : ""}files?${query}`;
}

/**
 * Returns the steps from a folder to a path: each with its name and its own path.
 * @param {string} path - absolute.
 * @param {string} base - the session's folder.
 * @returns {{name: string, path: string}[]} the first is the session's folder, or the root.
 */
export function stepsTo(path, base) {
  const isInside = path === base || path.startsWith(base.endsWith("/") ? base : `${base}/`);
  const top = isInside ? base : "/";
  const names = path.slice(top.length).split("/").filter(Boolean);
  const steps = [{ name: isInside ? (base.split("/").pop() || "/") : "/", path: top }];
  for (const name of names) steps.push({ name, path: `${steps[steps.length - 1].path.replace(/\/$/, "")}/${name}` });
  return steps;
}
