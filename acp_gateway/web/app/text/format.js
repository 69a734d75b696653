/** Formats times, sizes, names and untrusted text for people. Pure: the caller gives the time. */

// Controls, bidirectional controls, zero-width characters and tags: none of them is seen, all change what is seen.
const HIDDEN =
  // eslint-disable-next-line no-control-regex
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]|\udb40[\udc00-\udc7f]/g;

/**
 * Makes hidden characters visible: for commands, paths, titles and code of an agent.
 *
 * A control character becomes its picture (␛), any other one its code point (⟨U+202E⟩). Line feed and tab stay.
 * @param {unknown} text
 * @returns {string} an empty string for null and undefined.
 */
export function visible(text) {
  return plain(text).replace(HIDDEN, (character) => {
    const code = /** @type {number} */ (character.codePointAt(0));
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    if (code === 0x7f) return "\u2421";
    return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  });
}

/**
 * Makes a text of one line visible, with line feeds and tabs shown too, and cut where asked.
 * @param {unknown} text
 * @param {number} [most] - characters at most.
 */
export function oneLine(text, most = Infinity) {
  const line = visible(plain(text).trim()).replace(/\n/g, "\u23ce").replace(/\t/g, " ");
  if (line.length <= most) return line;
  const end = /[\ud800-\udbff]/.test(line[most - 2] ?? "") ? most - 2 : most - 1;
  return `${line.slice(0, Math.max(0, end))}\u2026`;
}

/**
 * Returns the text of an error as a sentence: it begins with a capital letter, and has no backticks.
 * @param {unknown} text
 */
export function sentence(text) {
  const whole = visible(text).replace(/`/g, "");
  return /^[a-z]+(?=[\s,:;'’])/.test(whole) ? whole[0].toUpperCase() + whole.slice(1) : whole;
}

/**
 * Returns a value as a string: strings as they are, nothing for null and undefined, anything else as JSON.
 * @param {unknown} value
 * @returns {string}
 */
export function plain(value) {
  if (typeof value === "string") return value;
  if (value === null || value === undefined) return "";
  if (typeof value === "object") return JSON.stringify(value) ?? "";
  return String(value);
}

/**
 * Copies a record whose names come from others, without a prototype: `constructor` and `__proto__` are names as any.
 * @template T
 * @param {Record<string, T>} [record]
 * @returns {Record<string, T>}
 */
export function recordOf(record = {}) {
  return Object.assign(Object.create(null), record);
}

/**
 * Returns the value of a name in a record that may have a prototype; undefined without one.
 * @template T
 * @param {Record<string, T>|undefined} record
 * @param {string} name
 * @returns {T|undefined}
 */
export function valueOf(record, name) {
  return record !== undefined && Object.hasOwn(record, name) ? record[name] : undefined;
}

/**
 * Parses a time of the wire.
 * @param {unknown} time - ISO 8601, or ms since 1970.
 * @returns {number|null} ms since 1970.
 */
export function timeOf(time) {
  const ms = typeof time === "string" ? Date.parse(time) : time;
  return typeof ms === "number" && Number.isFinite(ms) ? ms : null;
}

/**
 * Says how long ago something was: "now", "5 min", "3 h", "2 d"; an empty string without a time.
 * @param {unknown} time - ISO 8601, or ms since 1970.
 * @param {number} now - ms since 1970.
 */
export function ageText(time, now) {
  const at = timeOf(time);
  if (at === null) return "";
  const seconds = Math.max(0, (now - at) / 1000);
  return seconds < 60 ? "now" : durationText(seconds * 1000);
}

/**
 * Says how long something took: "12 s", "5 min", "3 h", "2 d".
 * @param {number} ms
 */
export function durationText(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

/**
 * Says how large something is: "512 B", "1.5 KiB", "20 MiB".
 * @param {number} bytes
 */
export function sizeText(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let size = bytes / 1024;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size < 10 ? size.toFixed(1) : Math.floor(size)} ${units[unit]}`;
}

/**
 * Shortens a large number: "950", "12k", "1.2M".
 * @param {number} count
 */
export function countText(count) {
  if (count < 1000) return String(count);
  if (count < 1e6) return `${Math.floor(count / 1000)}k`;
  return `${(count / 1e6).toFixed(1)}M`;
}

/**
 * Returns a count with its noun: "1 message", "3 messages".
 * @param {number} count
 * @param {string} one
 * @param {string} [many]
 */
export function counted(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

/**
 * Returns the title of a session for a list: its own, else its folder, else its id.
 * @param {{title?: string|null, cwd?: string|null, id: string}} session
 */
export function titleOf(session) {
  return oneLine(session.title, 120) || oneLine(baseName(session.cwd ?? ""), 120) || oneLine(session.id, 120);
}

/**
 * Returns a path relative to a folder, if it lies below it; hidden characters made visible.
 * @param {unknown} path
 * @param {string|null} [cwd]
 */
export function shortPath(path, cwd = null) {
  const whole = plain(path);
  const folder = cwd === null || cwd.endsWith("/") ? cwd : `${cwd}/`;
  return oneLine(folder !== null && folder !== "/" && whole.startsWith(folder) ? whole.slice(folder.length) : whole);
}

/** @param {string} path */
export function baseName(path) {
  return path.replace(/\/+$/, "").split("/").pop() ?? "";
}
