/** Notices that the gateway serves another version of the page than this one, and loads it. */
import { html } from "../parts/html.js";
import { ask } from "../../net/http.js";

/** Time in ms for the service worker of another version to take over, before the page is loaded without it. */
const TAKEOVER = 10_000;

/**
 * Creates what knows the versions.
 * @param {object} options
 * @param {any} options.window
 * @param {{setTimeout: Function, clearTimeout: Function}} options.timers
 */
export function createVersions({ window, timers }) {
  const { document, navigator } = window;
  const own = folderOf(document.querySelector("script[type=module]")?.src ?? "");
  const workers = navigator?.serviceWorker;
  let asking = false;
  let isOld = false;
  /** @type {Set<(isOld: boolean) => void>} */
  const listeners = new Set();

  /** Ask the gateway for its page: an old one lacks the address of this page's files. Where that fails, nothing changes. */
  const check = async () => {
    if (asking || isOld || own === null) return;
    asking = true;
    try {
      const answer = await ask(window, document.baseURI.split("#")[0], { cache: "no-store", headers: { Accept: "text/html" } });
      const served = answer.ok ? folderOf(answer.text) : null;
      if (served === null || served === own) return;
      isOld = true;
      for (const listener of listeners) listener(isOld);
    } catch {
      // The gateway is away.
    } finally {
      asking = false;
    }
  };

  /** Wait until the worker, which would open the page of its own version, is that of the new one. */
  const takeOver = async () => {
    const registration = await workers?.getRegistration(document.baseURI);
    if (!registration) return;
    const taken = new Promise((resolve) => workers.addEventListener("controllerchange", resolve, { once: true }));
    await registration.update();
    if (registration.installing ?? registration.waiting) await taken;
  };

  /** Whether the page may have come from the worker, and not from the gateway that it is connected to. */
  const isKept = Boolean(workers?.controller);
  if (isKept) workers.addEventListener("controllerchange", check);
  return {
    check,
    /** The page is connected for the first time, or for a further one: the gateway may be another one since then. */
    connected: (/** @type {number} */ line) => (line > 1 || isKept ? check() : undefined),
    /** Calls a function once the page is old. @param {(isOld: boolean) => void} listener */
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    /** Load the page again, in the new version. */
    async reload() {
      let timer = null;
      const late = new Promise((resolve) => (timer = timers.setTimeout(resolve, TAKEOVER)));
      await Promise.race([takeOver().catch(() => {}), late]);
      timers.clearTimeout(timer);
      window.location.reload();
    },
  };
}

/** The name of the folder of a version's files in a text; null without one. */
const folderOf = (/** @type {string} */ text) => /\/assets\/([0-9a-f]+)\/page\.js/.exec(text)?.[1] ?? null;

/** The line that says so, until the page is loaded again. What is typed is kept. */
export function NewVersion({ isOld, onReload }) {
  if (!isOld) return null;
  return html`<p class="connection" role="status">
    <span>The gateway has a new version of this page. Drafts are kept.</span>
    <button class="quiet" onClick=${onReload}>Reload</button>
  </p>`;
}
