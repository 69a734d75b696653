/** Carries out the commands of the page that do not belong to one of its parts. */
import { useCommand } from "./command_keys.js";
import { makeRoute } from "./route.js";
import { grouped, neighbourOf, nextWaiting } from "./words.js";

const go = (session) => {
  if (session) location.hash = makeRoute({ sessionId: session.id });
  return Boolean(session);
};

/** `sessions` are those of the list, `current` the one in use or null; an action is null where it is of no use. */
export function PageCommands({ sessions, current, show, hasBoard, canStart, canShare, canRename, canBeNotified, turnTheme, tell, panes }) {
  const shown = grouped(sessions).flatMap((group) => group.sessions);
  const currentId = current?.id ?? null;
  const isKnown = Boolean(current?.session);
  useCommand("palette", () => show("palette"));
  useCommand("keys", () => show("keys"));
  useCommand("theme", turnTheme);
  useCommand("next", () => go(nextWaiting(sessions, currentId)) || tell("No other session needs you."));
  useCommand("below", () => go(neighbourOf(shown, currentId, 1)));
  useCommand("above", () => go(neighbourOf(shown, currentId, -1)));
  useCommand("board", hasBoard ? () => void (location.hash = "#/board") : null);
  useCommand("beside", panes.choose);
  useCommand("other", panes.toOther);
  useCommand("close", panes.close);
  useCommand("new", canStart ? () => show("new") : null);
  useCommand("notifications", canBeNotified ? () => show("notifications") : null);
  useCommand("share", canShare && isKnown ? () => show("share") : null);
  useCommand("export", isKnown ? () => show("export") : null);
  useCommand("rename", canRename && isKnown && current.session.mayControl !== false ? () => show("rename") : null);
  return null;
}
