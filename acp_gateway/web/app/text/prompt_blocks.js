/** Turns what is in the composer into the content blocks of a prompt, and finds what may be completed in it. Pure. */

/** Characters that a mention may have after its @. */
const MENTION = /(^|\s)@(\S+)/g;

/**
 * The blocks of a prompt.
 * @param {string} text
 * @param {{mentions: Set<string>, attachments: object[], cwd: string, embeds: boolean}} context - `mentions`: paths
 *   that were chosen from the list; `embeds`: whether the agent takes embedded resources.
 */
export function promptBlocks(text, { mentions, attachments, cwd, embeds }) {
  const blocks = [];
  let from = 0;
  for (const match of text.matchAll(MENTION)) {
    const path = match[2];
    if (!mentions.has(path)) continue;
    const start = match.index + match[1].length;
    if (start > from) blocks.push({ type: "text", text: text.slice(from, start) });
    blocks.push({ type: "resource_link", uri: fileUri(cwd, path), name: path });
    from = start + 1 + path.length;
  }
  if (text.slice(from).trim() !== "") blocks.push({ type: "text", text: text.slice(from) });
  for (const attachment of attachments) blocks.push(blockOf(attachment, embeds));
  return blocks;
}

/** @param {any} attachment @param {boolean} embeds */
function blockOf(attachment, embeds) {
  if (attachment.data !== undefined) return { type: "image", mimeType: attachment.mimeType, data: attachment.data };
  if (embeds) {
    const uri = `attachment:///${encodeURIComponent(attachment.name)}`;
    return { type: "resource", resource: { uri, mimeType: "text/plain", text: attachment.text } };
  }
  const longest = Math.max(2, ...(attachment.text.match(/`+/g) ?? []).map((/** @type {string} */ ticks) => ticks.length));
  const fence = "`".repeat(longest + 1);
  return { type: "text", text: `${attachment.name}:\n\n${fence}\n${attachment.text}\n${fence}` };
}

/** @param {string} cwd @param {string} path */
function fileUri(cwd, path) {
  const whole = path.startsWith("/") ? path : `${cwd.replace(/\/+$/, "")}/${path}`;
  return `file://${whole.split("/").map(encodeURIComponent).join("/")}`;
}

/**
 * What may be completed at the caret: a command at the beginning of the text, or a file after @.
 * @param {string} text
 * @param {number} caret
 * @returns {{kind: "command"|"file", query: string, start: number, end: number}|null} `start` and `end`: what a choice replaces.
 */
export function completionAt(text, caret) {
  const before = text.slice(0, caret);
  const command = /^\/(\S*)$/.exec(before);
  if (command) return { kind: "command", query: command[1], start: 0, end: caret };
  const file = /(?:^|\s)@(\S*)$/.exec(before);
  if (file) return { kind: "file", query: file[1], start: caret - file[1].length - 1, end: caret };
  return null;
}

/**
 * Commands that match what was typed: those that begin with it first.
 * @param {any[]} commands @param {string} query
 */
export function matchingCommands(commands, query) {
  const typed = query.toLowerCase();
  const found = commands.filter((command) => command.name.toLowerCase().includes(typed));
  const begins = (/** @type {{name: string}} */ command) => command.name.toLowerCase().startsWith(typed);
  return [...found.filter(begins), ...found.filter((command) => !begins(command))].slice(0, 50);
}

/**
 * Earlier prompts of a session as text, the last one first, without repetitions.
 * @param {import("../updates/fold.js").Block[]} blocks @param {number} [most]
 */
export function promptHistory(blocks, most = 100) {
  const found = new Set();
  for (let i = blocks.length - 1; i >= 0 && found.size < most; i -= 1) {
    if (blocks[i].kind !== "user") continue;
    const text = (blocks[i].parts ?? []).map((part) => (part.type === "text" ? part.text : "")).join("").trim();
    if (text) found.add(text);
  }
  return [...found];
}
