/** Binds the commands of the page to what carries them out at present, and their keys to the document. */
import { useContext, useLayoutEffect, useRef } from "../../../vendor/hooks.js";
import { COMMANDS, commandOf, isKeyOf } from "../../state/commands.js";
import { PaneOf, takesText } from "../parts/hooks.js";
import { isComposing } from "../parts/keys.js";

export const IS_APPLE = /Mac|iPhone|iPad/.test(navigator.platform);

/**
 * What carries each command out; the last one of a name counts that is in no pane, or in the one in use.
 * @type {Map<string, {current: Function|null, pane: any}[]>}
 */
const bound = new Map();

/**
 * Carries out a command for as long as the component is there. `run` gets the event of the key, if it was one, and
 * returns false if it did nothing; null where the command is of no use now.
 */
export function useCommand(name, run) {
  const latest = useRef(/** @type {any} */ ({})).current;
  latest.current = run;
  latest.pane = useContext(PaneOf);
  useLayoutEffect(() => {
    bound.set(commandOf(name).name, [...(bound.get(name) ?? []), latest]);
    return () => void bound.set(name, (bound.get(name) ?? []).filter((one) => one !== latest));
  }, [name]);
}

/** What carries a command out now, or null. */
export function runOf(name) {
  return bound.get(name)?.findLast((one) => one.current && (one.pane === null || one.pane.isUsed()))?.current ?? null;
}

/** Whether an event is a key of a command that belongs to a field, or to the page. */
export function isKey(event, name) {
  return isKeyOf(event, commandOf(name), IS_APPLE);
}

/** A key that types nothing, wherever it is pressed. */
const isFunctionKey = ({ key }) => /^F\d+$/.test(key);

/** Follows the keys of the page: none acts while text is typed, unless it types none, nor behind a dialog. */
export function followKeys(document) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.repeat || isComposing(event)) return;
    if (document.querySelector("dialog[open]") || event.target.closest?.("[role=menu]")) return;
    if (takesText(event.target) && !event.ctrlKey && !event.metaKey && !isFunctionKey(event)) return;
    const found = COMMANDS.find((command) => command.at === "page" && isKey(event, command.name));
    const run = found && runOf(found.name);
    if (run && run(event) !== false) event.preventDefault();
  });
}
