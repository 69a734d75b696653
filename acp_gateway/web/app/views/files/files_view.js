/** The files of a session: its folder, and what is in a file. */
import { useEffect, useRef, useState } from "../../../vendor/hooks.js";
import { languageOfFile } from "../../code/languages.js";
import { uploadFile } from "../../net/uploads.js";
import { makeRoute } from "../../route/route.js";
import { fileUrl, kindOfFile, stepsTo } from "../../text/file_paths.js";
import { baseName, oneLine, sentence, sizeText } from "../../text/format.js";
import { classes, useLabel, useMayFocus } from "../parts/hooks.js";
import { html } from "../parts/html.js";
import { Icon } from "../parts/icons.js";
import { HAS_SOURCE, isText, Shown, textOf } from "./file_shown.js";

/** Bytes of a text that are read at a time, and at most. */
const PIECE = 256 * 1024;
const MOST_BYTES = 1024 * 1024;
const MOST_OF_NOTEBOOK = 8 * 1024 * 1024;

/** Kinds of files that the page reads itself. */
const READ = new Set(["text", "table", "notebook", "markdown"]);

/** The view. `request` asks the gateway; `path` is what is shown, empty for the session's folder, `line` a line of it. */
export function Files({ session, request, path, line, mayWrite }) {
  const { found, error, again } = useFound({ sessionId: session.id, request, path });
  const root = useRef(/** @type {any} */ (null));
  const mayFocus = useMayFocus();
  useEffect(() => void (mayFocus() && root.current.focus({ preventScroll: true })), [path]);
  const of = { sessionId: session.id, machine: session.machine ?? null };
  const link = (to, at = null) => makeRoute({ sessionId: session.id, file: to, line: at });
  const url = (form) => fileUrl({ ...of, path: found.path, form });
  const isFolder = found?.entries !== undefined;
  return html`<section class="changes files" aria-label=${useLabel("Files")}>
    <header class="changes-head">
      <h2>Files</h2>
      ${found && html`<${Steps} steps=${stepsTo(found.path, found.base)} link=${link} />`}
      ${found && html`<a class="quiet" href=${url(isFolder ? "zip" : "download")} download title=${isFolder ? "Download this folder as zip" : "Download"}><${Icon} name="down" /><span class="wide-only">${isFolder ? "As zip" : "Download"}</span></a>`}
      <a class="icon-button" href=${makeRoute({ sessionId: session.id })} aria-label="Back to the conversation" title="Back to the conversation"><${Icon} name="close" /></a>
    </header>
    <div class="changes-body files-body" ref=${root} tabindex="0" role="group" aria-label="What is there">
      ${error !== null && html`<div class="message" role="alert"><p dir="auto">${sentence(error)}</p><a class="secondary" href=${link("")}>The session’s folder</a></div>`}
      ${error === null && found === null && html`<p class="message" role="status">Loading…</p>`}
      ${isFolder && html`<${Folder} key=${found.path} folder=${found} link=${link} />`}
      ${isFolder && mayWrite && html`<${Upload} folder=${found} sessionId=${session.id} request=${request} done=${again} />`}
      ${found && !isFolder && html`<${File} key=${`${found.path} ${found.modified}`} file=${found} line=${line} url=${url("view")} sessionId=${session.id} request=${request} />`}
    </div>
  </section>`;
}

/** What is at a path: a folder with its entries, or a file; null until it is known. */
function useFound({ sessionId, request, path }) {
  const [state, setState] = useState(/** @type {any} */ ({ path: null, found: null, error: null }));
  const [count, setCount] = useState(0);
  useEffect(() => {
    let isHere = true;
    const look = async () => {
      // The folder tells where the session's own is.
      const top = await request("files/folder", { sessionId });
      if (path === "") return top;
      const found = await request("files/stat", { sessionId, path });
      if (found.kind === "folder") return request("files/folder", { sessionId, path });
      return { ...found, base: top.base };
    };
    look().then(
      (found) => isHere && setState({ path, found, error: null }),
      (error) => isHere && setState({ path, found: null, error: error.message }),
    );
    return () => {
      isHere = false;
    };
  }, [sessionId, path, count]);
  const isOf = state.path === path;
  return { found: isOf ? state.found : null, error: isOf ? state.error : null, again: () => setCount(count + 1) };
}

/** The way from the session's folder to what is shown. */
function Steps({ steps, link }) {
  return html`<nav class="file-steps" aria-label="Folders">${steps.map(({ name, path }, i) => i === steps.length - 1
    ? html`<bdi class="path" aria-current="page">${oneLine(name, 200)}</bdi>`
    : html`<a class="path" href=${link(path)}><bdi>${oneLine(name, 200)}</bdi></a><span aria-hidden="true">/</span>`)}</nav>`;
}

function Folder({ folder, link }) {
  const { entries, more, path, base } = folder;
  const to = (name) => link(`${path.replace(/\/$/, "")}/${name}`);
  return html`
    ${entries.length === 0 && html`<p class="message">This folder is empty.</p>`}
    <ul class="file-list">
      ${path !== base && path !== "/" && html`<li><a href=${link(path.replace(/\/[^/]*$/, "") || "/")}><${Icon} name="folder" /><span>..<span class="hidden"> (the folder above)</span></span></a></li>`}
      ${entries.map((entry) => html`<li key=${entry.name}><${Entry} entry=${entry} href=${to(entry.name)} /></li>`)}
    </ul>
    ${more && html`<p class="muted">There is more in this folder than is shown.</p>`}`;
}

function Entry({ entry, href }) {
  const inside = html`<${Icon} name=${entry.kind === "folder" ? "folder" : "read"} /><bdi>${oneLine(entry.name, 300)}</bdi>
    <span class="muted">${entry.kind === "file" ? sizeText(entry.size) : ""}</span>`;
  if (entry.secret) return html`<span class="file-closed" title="It may hold a key or a login">${inside}<span class="muted">not shown</span></span>`;
  if (entry.kind === "link") return html`<span class="file-closed" title="It leads out of the session’s folders, or nowhere">${inside}<span class="muted">link</span></span>`;
  if (entry.kind === "other") return html`<span class="file-closed">${inside}<span class="muted">no file</span></span>`;
  return html`<a href=${href}>${inside}</a>`;
}

/** Writes chosen files into a folder; where one is there already, it asks first. */
function Upload({ folder, sessionId, request, done }) {
  const [state, setState] = useState(/** @type {any} */ ({ name: null, part: 0, error: null, waiting: [], asks: null }));
  const send = async (files, overwrite) => {
    const [file, ...rest] = files;
    if (file === undefined) {
      setState({ name: null, part: 0, error: null, waiting: [], asks: null });
      return done();
    }
    const tell = (change) => setState({ name: file.name, part: 0, error: null, waiting: rest, asks: null, ...change });
    tell({});
    try {
      const path = `${folder.path.replace(/\/$/, "")}/${file.name}`;
      await uploadFile({ request, sessionId, path, file, overwrite, onProgress: (part) => tell({ part }) });
    } catch (error) {
      if (error.data?.reason === "exists") return tell({ asks: file });
      return tell({ error: error.message });
    }
    return send(rest, false);
  };
  const { name, part, error, waiting, asks } = state;
  const isBusy = name !== null && error === null && asks === null;
  return html`<div class="file-upload">
    <label class=${classes("secondary", isBusy && "is-busy")}><${Icon} name="up" />Upload files
      <input type="file" class="hidden" multiple disabled=${isBusy} onChange=${(event) => {
        const files = [...event.target.files];
        event.target.value = "";
        void send(files, false);
      }} /></label>
    <span class="muted" role="status">${isBusy ? `${oneLine(name, 100)}: ${Math.round(part * 100)} %` : ""}</span>
    ${error !== null && html`<p class="error" role="alert">${sentence(error)}</p>`}
    ${asks !== null && html`<p role="alert">“<bdi>${oneLine(name, 200)}</bdi>” is there already.
      <button class="secondary" onClick=${() => send([asks, ...waiting], true)}>Replace it</button>
      <button class="quiet" onClick=${() => send(waiting, false)}>Keep it</button></p>`}
  </div>`;
}

/** A file: its size, and what is in it. */
function File({ file, line, url, sessionId, request }) {
  const kind = kindOfFile(file.path);
  const [isSource, setSource] = useState(line !== null);
  const wants = READ.has(kind) || isSource;
  const { text, problem, isWhole, more } = useText({ file, sessionId, request, wants, all: kind === "notebook" });
  return html`
    <p class="file-facts muted"><span>${sizeText(file.size)}</span><span>${new Date(file.modified).toLocaleString()}</span>
      ${HAS_SOURCE.has(kind) && html`<button class="quiet" aria-pressed=${String(isSource)} onClick=${() => setSource(!isSource)}>Source</button>`}</p>
    ${wants && text === null && problem === null && html`<p class="message" role="status">Loading…</p>`}
    ${problem !== null && html`<p class="message" role="alert">${sentence(problem)}</p>`}
    ${(!wants || text !== null) && problem === null && html`<${Shown} kind=${isSource ? "text" : kind} file=${file} url=${url} text=${text}
      language=${languageOfFile(baseName(file.path))} line=${line} />`}
    ${text !== null && !isWhole && html`<p><span class="muted">This is the beginning of the file. </span>
      ${more !== null && html`<button class="secondary" onClick=${more}>Show more</button>`}</p>`}`;
}

/** The text of a file, as much of it as was asked for. */
function useText({ file, sessionId, request, wants, all }) {
  const [most, setMost] = useState(all ? MOST_OF_NOTEBOOK : PIECE);
  const [bytes, setBytes] = useState(/** @type {Uint8Array[]} */ ([]));
  const [problem, setProblem] = useState(/** @type {string|null} */ (null));
  const size = bytes.reduce((sum, { length }) => sum + length, 0);
  const end = Math.min(file.size, most);
  const isThere = size >= end && (size > 0 || file.size === 0);
  useEffect(() => {
    let isHere = true;
    if (!wants || problem !== null || isThere) return undefined;
    request("files/read", { sessionId, path: file.path, offset: size, length: Math.min(PIECE, end - size) }).then(
      ({ data }) => {
        const piece = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
        if (!isHere) return;
        if (size === 0 && !isText(piece)) setProblem("This file is not text. Download it to see it.");
        else if (piece.length === 0) setProblem("The file has become shorter.");
        else setBytes([...bytes, piece]);
      },
      (error) => isHere && setProblem(error.message),
    );
    return () => {
      isHere = false;
    };
  }, [wants, bytes, most, problem]);
  const isWhole = size >= file.size;
  return {
    text: isThere && wants ? textOf(bytes) : null,
    problem,
    isWhole,
    more: most < MOST_BYTES && isThere ? () => setMost(Math.min(MOST_BYTES, most * 4)) : null,
  };
}
