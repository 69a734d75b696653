/** Tells a user who looks elsewhere that a session needs them: title and icon of the tab, and notifications. */
import { titleOf } from "./format.js";
import { makeRoute } from "./route.js";
import { registerWorker } from "./service_worker.js";
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
  /** By question: a promise of the function that takes its notification away. */
  const shown = new Map();
  /** A promise of the service worker's registration, or of null where there is none. */
  let worker = null;

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
          const key = `${session.id} ${question.requestId ?? question.since}`;
          if (!before.has(key)) notify(session, question, key);
        }
      }
      for (const [key, taking] of shown) {
        if (keys.has(key)) continue;
        shown.delete(key);
        taking.then((takeAway) => takeAway());
      }
      told = keys;
    },
  };
}
