/** The list above the composer: slash commands, or files for a mention. */
import { useEffect, useRef, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { visible } from "../../text/format.js";
import { classes } from "../parts/hooks.js";
import { completionAt, matchingCommands } from "../../text/prompt_blocks.js";

/** Time in ms without a key after which files are searched for. */
const PAUSE = 120;

/** What may be completed now, as {kind, items: [{value, name, hint}], start, end}, or null. */
export function useSuggestions({ text, caret, commands, searchFiles }) {
  const [files, setFiles] = useState([]);
  const [closed, setClosed] = useState(/** @type {any} */ (null));
  const latest = useRef(0);
  const found = completionAt(text, caret);
  const place = found && `${found.kind} ${found.start}`;
  const fileQuery = found?.kind === "file" ? found.query : null;
  useEffect(() => {
    if (fileQuery === null) return undefined;
    const turn = (latest.current += 1);
    const timer = setTimeout(async () => {
      const paths = await searchFiles(fileQuery);
      if (turn === latest.current && paths) setFiles(paths);
    }, PAUSE);
    return () => clearTimeout(timer);
  }, [fileQuery]);
  useEffect(() => {
    if (place === null) setClosed(null);
  }, [place]);
  const close = () => setClosed(place);
  if (!found || closed === place) return { list: null, close };
  const items =
    found.kind === "command"
      ? matchingCommands(commands, found.query).map(({ name, description, input }) => ({
          value: `/${name} `,
          name: `/${name}`,
          hint: [input?.hint, description].filter(Boolean).join(" · "),
        }))
      : files.map((path) => ({ value: `@${path} `, name: path, path }));
  return { list: items.length > 0 ? { ...found, items } : null, close };
}

/** Shows the list; `at` is the index of the active entry, `id` that of its element. */
export function Suggestions({ id, list, at, choose }) {
  const active = useRef(/** @type {any} */ (null));
  useEffect(() => active.current?.scrollIntoView({ block: "nearest" }), [at]);
  return html`<ul class="suggestions" role="listbox" id=${id} aria-label=${list.kind === "command" ? "Commands" : "Files"}>
    ${list.items.map((item, i) => html`<li
      id=${`${id}-${i}`}
      role="option"
      aria-selected=${String(i === at)}
      class=${classes("suggestion", i === at && "is-active")}
      ref=${i === at ? active : undefined}
      onPointerDown=${(event) => event.preventDefault()}
      onClick=${() => choose(item)}
    ><span class="suggestion-name" dir="auto">${visible(item.name)}</span>${item.hint && html`<span class="suggestion-hint" dir="auto">${visible(item.hint)}</span>`}</li>`)}
  </ul>`;
}
