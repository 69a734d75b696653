/**
 * The commands of the page, in one table: it binds their keys, and the sheet of keys and the palette are made of it. Pure.
 */

/**
 * @typedef {object} Command
 * @property {string} name
 * @property {string} label - what it does; empty for what the palette has under another name.
 * @property {string[]} keys - such as "n", "Mod+k", "1-9", "Alt+click". Mod is Cmd on Apple's machines, Ctrl elsewhere.
 * @property {string} [icon]
 * @property {"page"|"field"|"link"} at - page: anywhere but where text is typed; field: in the field that it belongs to;
 *   link: on a session of a list.
 * @property {boolean} [chosen] - can be chosen in the palette.
 */

/** @type {Command[]} */
export const COMMANDS = [
  { name: "palette", label: "Commands and sessions", keys: ["Mod+k"], at: "page" },
  { name: "keys", label: "All keys", keys: ["?"], icon: "other", at: "page", chosen: true },
  { name: "next", label: "Next session that needs you", keys: ["n"], icon: "alert", at: "page", chosen: true },
  { name: "below", label: "Next session of the list", keys: ["j"], icon: "down", at: "page" },
  { name: "above", label: "Previous session of the list", keys: ["k"], icon: "up", at: "page" },
  { name: "board", label: "Board of all sessions", keys: ["b"], icon: "board", at: "page", chosen: true },
  { name: "beside", label: "Open another session beside…", keys: [], icon: "beside", at: "page", chosen: true },
  { name: "other", label: "To the session beside", keys: ["F6"], icon: "beside", at: "page", chosen: true },
  { name: "close", label: "Close one of two sessions", keys: [], icon: "close", at: "page", chosen: true },
  { name: "new", label: "New session", keys: ["+"], icon: "plus", at: "page", chosen: true },
  { name: "decide", label: "Choose an option of the question", keys: ["1-9"], at: "page" },
  { name: "write", label: "Write a prompt", keys: ["i"], icon: "edit", at: "page", chosen: true },
  { name: "edit", label: "Edit a prompt and send it again", keys: [], at: "page" },
  { name: "find", label: "Find in this session", keys: ["/"], icon: "search", at: "page", chosen: true },
  { name: "changes", label: "Changes", keys: ["c"], icon: "changes", at: "page", chosen: true },
  { name: "stop", label: "Stop the agent", keys: ["Mod+."], icon: "stop", at: "page", chosen: true },
  { name: "share", label: "Share", keys: [], icon: "share", at: "page", chosen: true },
  { name: "export", label: "Export…", keys: [], icon: "down", at: "page", chosen: true },
  { name: "rename", label: "Rename…", keys: [], icon: "edit", at: "page", chosen: true },
  { name: "fork", label: "Fork", keys: [], icon: "copy", at: "page", chosen: true },
  { name: "theme", label: "Dark or light colours", keys: [], icon: "eye", at: "page", chosen: true },
  { name: "notifications", label: "Notifications", keys: [], icon: "bell", at: "page", chosen: true },
  { name: "machine", label: "How busy the machine is", keys: [], icon: "load", at: "page", chosen: true },
  { name: "send", label: "Send the prompt", keys: ["Enter", "Mod+Enter"], at: "field" },
  { name: "recall", label: "Earlier prompts, from an empty field", keys: ["ArrowUp"], at: "field" },
  { name: "aside", label: "Open it beside the other one", keys: ["Alt+click", "Alt+Enter"], at: "link" },
  { name: "leave", label: "From the prompt to the question", keys: ["Escape"], at: "field" },
];

/** @type {Record<string, string>} */
const SHOWN = { ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc" };

/** @param {string} name */
export function commandOf(name) {
  const found = COMMANDS.find((command) => command.name === name);
  if (!found) throw new Error(`there is no command ${name}`);
  return found;
}

/**
 * Tells whether an event of the keyboard is one of a command's keys.
 * @param {{type?: string, key: string, ctrlKey: boolean, metaKey: boolean, altKey: boolean, shiftKey: boolean}} event
 * @param {Command} command
 * @param {boolean} isApple
 */
export function isKeyOf(event, command, isApple) {
  const { ctrlKey, metaKey, altKey, shiftKey } = event;
  const key = event.type === "click" ? event.type : event.key;
  return command.keys.some((wanted) => {
    if (wanted.startsWith("Alt+")) return altKey && !ctrlKey && !metaKey && !shiftKey && key === wanted.slice(4);
    const withMod = wanted.startsWith("Mod+");
    const name = withMod ? wanted.slice(4) : wanted;
    // Ctrl with a letter edits text on Apple's machines.
    const hasMod = name.length > 1 ? ctrlKey || metaKey : isApple ? metaKey && !ctrlKey : ctrlKey && !metaKey;
    if (altKey || (withMod ? !hasMod : ctrlKey || metaKey)) return false;
    // Where "?", "/", "+" and digits need Shift depends on the keyboard.
    const isSign = name === "1-9" || (name.length === 1 && name.toLowerCase() === name.toUpperCase());
    if (shiftKey && !isSign) return false;
    return name === "1-9" ? /^[1-9]$/.test(key) : name === key;
  });
}

/**
 * Returns a key as people write it.
 * @param {string} key
 * @param {boolean} isApple
 */
export function keyText(key, isApple) {
  if (key.startsWith("Alt+")) return `${isApple ? "⌥" : "Alt"} ${key.slice(4)}`;
  const withMod = key.startsWith("Mod+");
  const name = withMod ? key.slice(4) : key;
  const shown = SHOWN[name] ?? (withMod && name.length === 1 ? name.toUpperCase() : name);
  return withMod ? `${isApple ? "⌘" : "Ctrl"} ${shown}` : shown;
}
