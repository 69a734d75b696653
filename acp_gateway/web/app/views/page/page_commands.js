/** Carries out the commands of the page that do not belong to one of its parts. */
import { useCommand } from "./command_keys.js";
import { makeRoute } from "../../route/route.js";
import { grouped, neighbourOf, nextWaiting } from "../../text/words.js";

const go = (session) => {
  if (session) location.hash = makeRoute({ sessionId: session.id });
  return Boolean(session);
};

/** `here` and `open` are signals: of the sessions of the list, and of the one in use, or null. An action is null where it is of no use. */
export function PageCommands({ here, open, show, hasBoard, canStart, canShare, canRename, canBeNotified, canSeeMachine, turnTheme, tell, panes }) {
  const shown = () => grouped(here.peek()).flatMap((group) => group.sessions);
  const currentId = open?.id.value ?? null;
  const session = open?.session.value ?? null;
  useCommand("palette", () => show("palette"));
  useCommand("keys", () => show("keys"));
  useCommand("theme", turnTheme);
  useCommand("next", () => go(nextWaiting(here.peek(), currentId)) || tell("No other session needs you."));
  useCommand("below", () => go(neighbourOf(shown(), currentId, 1)));
  useCommand("above", () => go(neighbourOf(shown(), currentId, -1)));
  useCommand("board", hasBoard ? () => void (location.hash = "#/board") : null);
  useCommand("beside", panes.choose);
  useCommand("other", panes.toOther);
  useCommand("close", panes.close);
  useCommand("new", canStart ? () => show("new") : null);
  useCommand("notifications", canBeNotified ? () => show("notifications") : null);
  useCommand("machine", canSeeMachine ? () => show("machine") : null);
  useCommand("share", canShare && session ? () => show("share") : null);
  useCommand("export", session ? () => show("export") : null);
  useCommand("rename", canRename && session && session.mayControl !== false ? () => show("rename") : null);
  return null;
}
