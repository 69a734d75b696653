/** Links that open a file at its line in an editor on the reader's machine. Pure. */

/** Editors by the word that the browser keeps. Those over SSH open the files of the gateway's machine. */
export const EDITORS = new Map([
  ["", "No editor"],
  ["vscode", "VS Code"],
  ["vscode-ssh", "VS Code over SSH"],
  ["cursor", "Cursor"],
  ["cursor-ssh", "Cursor over SSH"],
  ["zed", "Zed"],
  ["zed-ssh", "Zed over SSH"],
  ["idea", "IntelliJ IDEA"],
]);

/** Longest path that is put into a link, in characters. */
const LONGEST = 1000;

/**
 * Makes a link.
 * @param {string} editor - a key of EDITORS.
 * @param {{path: string, line: number|null, host: string}} place - `host` is the name by which SSH reaches the files.
 * @returns {string|null} null without an editor, or if the path is relative or strange.
 */
export function editorLink(editor, { path, line, host }) {
  // eslint-disable-next-line no-control-regex
  if (!EDITORS.has(editor) || editor === "" || path.length > LONGEST || /[\u0000-\u001f\u007f]/.test(path)) return null;
  const absolute = /^[A-Za-z]:[\\/]/.test(path) ? `/${path.replace(/\\/g, "/")}` : path;
  if (!absolute.startsWith("/") || absolute.startsWith("//") || !absolute.isWellFormed?.()) return null;
  const file = absolute.split("/").map(encodeURIComponent).join("/").replace(/^\/([A-Za-z])%3A\//, "/$1:/");
  const at = line !== null && line > 0 ? line : null;
  const [scheme, ssh] = editor.split("-");
  if (ssh && !/^[A-Za-z0-9][A-Za-z0-9.-]*$/.test(host)) return null;
  if (scheme === "idea") return `idea://open?file=${file}${at === null ? "" : `&line=${at}`}`;
  const place = at === null ? file : `${file}:${at}`;
  if (!ssh) return `${scheme}://file${place}`;
  return scheme === "zed" ? `zed://ssh/${host}${place}` : `${scheme}://vscode-remote/ssh-remote+${host}${place}`;
}
