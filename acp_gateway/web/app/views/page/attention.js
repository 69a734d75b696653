/** Tells a user who looks elsewhere that a session needs them: title and icon of the tab, and notifications. */
import { titleOf } from "../../text/format.js";
import { makeRoute } from "../../route/route.js";
import { registerWorker } from "../../net/service_worker.js";
import { endText } from "../../updates/turn_ends.js";
import { needsYou } from "../../text/words.js";

const ICON = new URL("../../../icons/icon.svg", import.meta.url).href;
const ICON_WAITING = new URL("../../../icons/icon-waiting.svg", import.meta.url).href;

export const DENIED = "This browser blocks notifications of this page. Allow them in its settings, then come back.";

/** The title of the tab. */
export function tabTitle(waiting, session) {
  const name = session ? `${titleOf(session)} – acp-gateway` : "acp-gateway";
  return waiting > 0 ? `(${waiting}) ${name}` : name;
}

/** Whether the end of a session's last turn is told. @param {any} session @param {{after: number|null, sessions: string[]}} done */
export function wantsEnd({ id, lastTurn, mayControl }, { after, sessions }) {
  if (!lastTurn || mayControl === false) return false;
  return sessions.includes(id) || (after !== null && lastTurn.seconds >= 60 * after);
}

/** Watches the sessions. `window` is a parameter for tests. */
export function createAttention(window) {
  const { document } = window;
  /** Questions that were told, by session and id. */
  let told = /** @type {Set<string>|null} */ (null);
  /** Times of the ends of the last turns, by session; null before the first list. @type {Map<string, string|null>|null} */
  let ended = null;
  /** By question, and by turn: a promise of the function that takes its notification away. */
  const shown = new Map();
  /** A promise of the service worker's registration, or of null where there is none. */
  let worker = /** @type {Promise<ServiceWorkerRegistration|null>|null} */ (null);

  const registered = () => {
    worker ??= registerWorker(window).catch(() => null);
    return worker;
  };

  const follow = (hash) => {
    window.focus();
    window.location.hash = hash;
  };
  window.navigator?.serviceWorker?.addEventListener("message", (event) => follow(event.data.hash));

  const show = (title, options) => {
    const notification = new window.Notification(title, options);
    notification.onclick = () => {
      follow(options.data.hash);
      notification.close();
    };
    return () => notification.close();
  };

  const showByWorker = async (title, options) => {
    const registration = await registered();
    if (registration === null) return show(title, options);
    await registration.showNotification(title, options);
    return async () => (await registration.getNotifications({ tag: options.tag })).forEach((one) => one.close());
  };

  const notify = (session, question, tag) => {
    const hash = makeRoute({ sessionId: session.id, requestId: question.requestId ?? null });
    const options = { body: String(question.title ?? ""), tag, icon: ICON, data: { hash } };
    // Where nothing can be shown, the tab's title has to do.
    shown.set(tag, showByWorker(`${titleOf(session)} needs you`, options).catch(() => () => {}));
  };

  /** Tells the end of a session's turn: done, failed or stopped, and why. */
  const notifyEnd = (session, tag) => {
    const { error = null, stopReason = null } = session.lastTurn;
    const body = endText({ stopReason, error: error && String(error.message) });
    const words = error ? "has failed" : body ? "was stopped" : "is done";
    const options = { body, tag, icon: ICON, data: { hash: makeRoute({ sessionId: session.id }) } };
    shown.set(tag, showByWorker(`${titleOf(session)} ${words}`, options).catch(() => () => {}));
  };

  return {
    get permission() {
      return "Notification" in window && window.isSecureContext ? window.Notification.permission : "unavailable";
    },
    /** True for an iPhone or iPad, where only a page of the Home Screen may notify. */
    get isApple() {
      const { userAgent = "", maxTouchPoints = 0 } = window.navigator ?? {};
      return /iPhone|iPad/.test(userAgent) || (/Macintosh/.test(userAgent) && maxTouchPoints > 1);
    },
    registered,
    async ask() {
      const answer = await window.Notification.requestPermission();
      if (answer === "granted") await registered();
      return answer;
    },
    /**
     * Show the state of all sessions; `current` is the one that is open, `done` the turns whose end is told.
     * @param {any[]} sessions @param {any} current @param {{after: number|null, sessions: string[]}} [done]
     */
    update(sessions, current, done = { after: null, sessions: [] }) {
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
          const key = `${session.id} ${question.requestId ?? question.since}`;
          if (!before.has(key)) notify(session, question, key);
        }
      }
      const ends = new Map(sessions.map((session) => [session.id, session.lastTurn?.at ?? null]));
      if (ended && document.hidden && this.permission === "granted") {
        for (const session of sessions) {
          const isNew = ended.has(session.id) && ended.get(session.id) !== ends.get(session.id);
          if (isNew && wantsEnd(session, done)) notifyEnd(session, `turn ${session.id}`);
        }
      }
      ended = ends;
      // That of a turn goes when the next one begins.
      for (const { id, turn } of sessions) if (!turn) keys.add(`turn ${id}`);
      for (const [key, taking] of shown) {
        if (keys.has(key)) continue;
        shown.delete(key);
        taking.then((takeAway) => takeAway());
      }
      told = keys;
    },
  };
}
