/** Tells a user who looks elsewhere that a session needs them: title and icon of the tab, and notifications. */
import { titleOf } from "./format.js";
import { makeRoute } from "./route.js";
import { needsYou } from "./words.js";

const ICON = new URL("../icons/icon.svg", import.meta.url).href;
const ICON_WAITING = new URL("../icons/icon-waiting.svg", import.meta.url).href;

/** The title of the tab. */
export function tabTitle(waiting, session) {
  const name = session ? `${titleOf(session)} – acp-gateway` : "acp-gateway";
  return waiting > 0 ? `(${waiting}) ${name}` : name;
}

/** Watches the sessions. `window` is a parameter for tests. */
export function createAttention(window) {
  const { document } = window;
  /** Questions that were told, by session and id. */
  let told = null;

  const notify = (session, question) => {
    const options = { body: String(question.title ?? ""), tag: `${session.id} ${question.requestId}`, icon: ICON };
    try {
      const notification = new window.Notification(`${titleOf(session)} needs you`, options);
      notification.onclick = () => {
        window.focus();
        window.location.hash = makeRoute({ sessionId: session.id, requestId: question.requestId ?? null });
        notification.close();
      };
    } catch {
      // Some phones have the constructor and forbid it; the tab's title has to do.
    }
  };

  return {
    get permission() {
      return "Notification" in window && window.isSecureContext ? window.Notification.permission : "unavailable";
    },
    ask: () => window.Notification.requestPermission(),
    /** Show the state of all sessions; `current` is the one that is open. */
    update(sessions, current) {
      const waiting = sessions.filter(needsYou);
      document.title = tabTitle(waiting.length, current);
      const link = document.querySelector("link[rel=icon]");
      const icon = waiting.length > 0 ? ICON_WAITING : ICON;
      if (link && link.href !== icon) link.href = icon;
      const questions = waiting.flatMap((session) => session.waiting.map((question) => ({ session, question })));
      const keys = new Set(questions.map(({ session, question }) => `${session.id} ${question.requestId ?? question.since}`));
      if (told && document.hidden && this.permission === "granted") {
        const before = told;
        for (const { session, question } of questions) {
          if (!before.has(`${session.id} ${question.requestId ?? question.since}`)) notify(session, question);
        }
      }
      told = keys;
    },
  };
}
