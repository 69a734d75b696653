/** Binds the commands of the page to what carries them out at present, and their keys to the document. */
import { useLayoutEffect, useRef } from "../vendor/standalone.module.js";
import { COMMANDS, commandOf, isKeyOf } from "./commands.js";
import { takesText } from "./hooks.js";
import { isComposing } from "./keys.js";

export const IS_APPLE = /Mac|iPhone|iPad/.test(navigator.platform);

/** What carries each command out; the last one of a name counts. @type {Map<string, {current: Function|null}[]>} */
const bound = new Map();

/**
 * Carries out a command for as long as the component is there. `run` gets the event of the key, if it was one, and
 * returns false if it did nothing; null where the command is of no use now.
 */
export function useCommand(name, run) {
  const latest = useRef(run);
  latest.current = run;
  useLayoutEffect(() => {
    bound.set(commandOf(name).name, [...(bound.get(name) ?? []), latest]);
    return () => void bound.set(name, bound.get(name).filter((one) => one !== latest));
  }, [name]);
}

/** What carries a command out now, or null. */
export function runOf(name) {
  return bound.get(name)?.findLast((one) => one.current)?.current ?? null;
}

/** Whether an event is a key of a command that belongs to a field, or to the page. */
export function isKey(event, name) {
  return isKeyOf(event, commandOf(name), IS_APPLE);
}

/** Follows the keys of the page: none acts while text is typed, unless it has Ctrl or Cmd, nor behind a dialog. */
export function followKeys(document) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.repeat || isComposing(event)) return;
    if (document.querySelector("dialog[open]") || event.target.closest?.("[role=menu]")) return;
    if (takesText(event.target) && !event.ctrlKey && !event.metaKey) return;
    const found = COMMANDS.find((command) => command.at === "page" && isKey(event, command.name));
    const run = found && runOf(found.name);
    if (run && run(event) !== false) event.preventDefault();
  });
}
