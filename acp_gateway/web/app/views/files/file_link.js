/** Links from the conversation to files of the session, and small pictures of them. */
import { createContext } from "../../../vendor/preact.js";
import { useContext, useState } from "../../../vendor/hooks.js";
import { fileUrl, pathIn, picturesOf } from "../../text/file_paths.js";
import { oneLine, shortPath } from "../../text/format.js";
import { html } from "../parts/html.js";
import { makeRoute } from "../../route/route.js";

/** The session whose files may be shown, as {sessionId, machine, cwd}; null where none may. */
export const FilesOf = createContext(/** @type {{sessionId: string, machine: string|null, cwd: string|null}|null} */ (null));

/** A link to a file at its line; the children alone where files may not be shown. */
export function FileLink({ path, line = null, children }) {
  const of = useContext(FilesOf);
  if (of === null) return children;
  return html`<a class="file-link" href=${makeRoute({ sessionId: of.sessionId, file: path, line })} title=${`Show ${oneLine(path, 300)}`}>${children}</a>`;
}

/** A text that names a file as a link to it; any other text as it is. */
export function NamedFile({ text, children }) {
  const found = pathIn(text);
  return found === null ? children : html`<${FileLink} ...${found}>${children}</${FileLink}>`;
}

/** The pictures that a tool call has written or named, small, and loaded when they are seen. */
export function Pictures({ tool }) {
  const of = useContext(FilesOf);
  const paths = of === null ? [] : picturesOf(tool);
  if (of === null || paths.length === 0) return null;
  return html`<div class="thumbs">${paths.map((path) => html`<${Thumb} key=${path} of=${of} path=${path} />`)}</div>`;
}

/** One picture; nothing if there is none. */
function Thumb({ of, path }) {
  const [isMissing, setMissing] = useState(false);
  if (isMissing) return null;
  const name = shortPath(path, of.cwd);
  return html`<a class="thumb" href=${makeRoute({ sessionId: of.sessionId, file: path })} title=${name}>
    <img loading="lazy" decoding="async" alt=${name} src=${fileUrl({ ...of, path })} onError=${() => setMissing(true)} /></a>`;
}
