/** Has the gateway notify this browser while no page is open, by the push service of the browser's maker. */
import { keep, read } from "../state/kept.js";

/** Where the settings are kept: the gateway forgets them when this browser signs in again. */
const KEPT = "notifications";

/**
 * @typedef {{start: number, end: number}} Quiet - minutes after midnight.
 * @typedef {{after: number|null, sessions: string[]}} Done - the turns whose end is told: those of any session from so
 *   many minutes on, and all of these sessions.
 * @typedef {{quiet: Quiet|null, session: string|null, done?: Done}} Settings - `session` is the only one that is told of,
 *   if there is one.
 */

/** @type {Done} */
const NO_TURNS = /** @type {Done} */ ({ after: null, sessions: [] });

/** Maximum sessions whose turns are all told. */
const MOST_SESSIONS = 100;

/** Minutes of a time such as "22:30". */
export const minutesOf = (/** @type {string} */ time) => Number(time.slice(0, 2)) * 60 + Number(time.slice(3, 5));

/** A time such as "22:30" from its minutes. */
export const timeOfDay = (/** @type {number} */ minutes) =>
  [Math.floor(minutes / 60), minutes % 60].map((part) => String(part).padStart(2, "0")).join(":");

/**
 * Creates the notifications of this browser.
 * @param {object} options
 * @param {any} options.window - a parameter for tests.
 * @param {() => Promise<any>} options.registered - returns the registration of the service worker, or null.
 * @param {(method: string, params: any) => Promise<any>} options.request - calls the gateway.
 * @param {Storage|null} options.kept
 */
export function createPush({ window, registered, request, kept }) {
  // The gateway uses the offset where it does not know the zone.
  const clock = () => ({
    offset: -new Date().getTimezoneOffset(),
    zone: Intl.DateTimeFormat().resolvedOptions().timeZone ?? null,
  });

  /** The settings, also where the browser keeps nothing. @type {Settings|null} */
  let last = null;
  const settingsOf = () => keptSettings(kept) ?? last;
  const keepSettings = (/** @type {Settings} */ settings) => {
    last = settings;
    keep(kept, KEPT, JSON.stringify(settings));
  };
  const doneOf = () => settingsOf()?.done ?? NO_TURNS;

  /** The subscription of the browser with this key of the gateway; made if there is none and it is `wanted`. */
  const subscription = async (/** @type {string} */ key, /** @type {boolean} */ wanted) => {
    const manager = (await registered())?.pushManager;
    if (!manager) return null;
    let found = await manager.getSubscription();
    const its = found?.options?.applicationServerKey;
    if (its && encoded(its) !== key) {
      await found.unsubscribe();
      found = null;
    }
    return found ?? (wanted ? manager.subscribe({ userVisibleOnly: true, applicationServerKey: key }) : null);
  };

  const tell = async (/** @type {any} */ found, /** @type {Settings} */ { quiet, session, done = doneOf() }) => {
    const keys = { p256dh: encoded(found.getKey("p256dh")), auth: encoded(found.getKey("auth")) };
    const hours = quiet && { quiet: { start: quiet.start, end: quiet.end, ...clock() } };
    const turns = done.after === null && done.sessions.length === 0 ? null : { done };
    await request("push/subscribe", { endpoint: found.endpoint, ...keys, ...hours, ...(session && { session }), ...turns });
    keepSettings({ quiet, session, done });
  };

  return {
    get available() {
      return Boolean(window.isSecureContext && "PushManager" in window && window.navigator?.serviceWorker);
    },
    /** The turns whose end is told, by the gateway or by this page. */
    get done() {
      return doneOf();
    },
    /** Change them here, and at the gateway if it notifies this browser. */
    async setDone(/** @type {Done} */ { after, sessions }) {
      const done = { after, sessions: sessions.slice(-MOST_SESSIONS) };
      keepSettings({ quiet: null, session: null, ...settingsOf(), done });
      await this.refresh();
    },
    /** Whether they are turned on, and the settings. */
    state: () => request("push/get", {}),
    /** Turn them on, or change the settings. Throws an Error with a text for people. */
    async turnOn(/** @type {Settings} */ settings) {
      const { key } = await request("push/get", {});
      const found = await subscription(key, true);
      if (found === null) throw new Error("This browser has no service workers for this page.");
      await tell(found, settings);
    },
    async turnOff() {
      await request("push/unsubscribe", {});
      await this.forget();
    },
    /** End the subscription at the push service; the gateway's ends with the browser's session. */
    async forget() {
      const manager = this.available && window.Notification.permission === "granted" ? (await registered())?.pushManager : null;
      await (await manager?.getSubscription())?.unsubscribe();
    },
    test: () => request("push/test", {}),
    /** Tell the gateway again what it has lost, or what is different now: the endpoint, the key, the time zone. */
    async refresh() {
      if (!this.available || window.Notification?.permission !== "granted") return;
      const state = await request("push/get", {});
      const found = await subscription(state.key, state.subscribed);
      if (found) await tell(found, settingsOf() ?? { quiet: state.quiet, session: state.session ?? null, done: state.done });
    },
  };
}

/** @param {Storage|null} kept @returns {Settings|null} */
function keptSettings(kept) {
  try {
    const { quiet = null, session = null, done } = JSON.parse(read(kept, KEPT) ?? "null");
    const { after = null, sessions = [] } = done ?? NO_TURNS;
    return { quiet, session, done: { after, sessions } };
  } catch {
    return null; // There are none, or they are of another version.
  }
}

/** Bytes in base64url. @param {ArrayBuffer} bytes */
function encoded(bytes) {
  const text = btoa(String.fromCharCode(...new Uint8Array(bytes)));
  return text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
