/** The colours that a reader has chosen, instead of those that the system asks for. */
import { keep, read } from "../../state/kept.js";

const NAME = "colours";
const DARK = /prefers-color-scheme:\s*dark/;
const LIGHT = /prefers-color-scheme:\s*light/;

/**
 * Follows the choice that the browser keeps; returns a function that changes it to the other colours.
 * @param {Window} window
 * @param {{getItem: (name: string) => string|null, setItem: (name: string, value: string) => void}|null} storage
 */
export function createTheme(window, storage) {
  const { document } = window;
  /** What each query says, and its media list. @type {[boolean, {mediaText: string}][]} */
  const queries = [];
  for (const sheet of document.styleSheets) {
    for (const rule of /** @type {any[]} */ ([...sheet.cssRules])) if (rule.media && DARK.test(rule.media.mediaText)) queries.push([true, rule.media]);
  }
  const metas = /** @type {HTMLMetaElement[]} */ ([...document.querySelectorAll("meta[name=theme-color]")]);
  const dark = metas.map((meta) => (DARK.test(meta.media) ? true : LIGHT.test(meta.media) ? false : null));
  const show = (/** @type {boolean} */ isDark) => {
    document.documentElement.style.colorScheme = isDark ? "dark" : "light";
    for (const [, media] of queries) media.mediaText = isDark ? "all" : "not all";
    metas.forEach((meta, i) => dark[i] !== null && (meta.media = dark[i] === isDark ? "all" : "not all"));
  };
  const kept = read(storage, NAME);
  let shown = kept === "dark" || kept === "light" ? kept : null;
  if (shown !== null) show(shown === "dark");
  return () => {
    const before = shown ?? (window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    shown = before === "dark" ? "light" : "dark";
    show(shown === "dark");
    keep(storage, NAME, shown);
  };
}
