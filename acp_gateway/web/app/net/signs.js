/** Tells of signs that the network may have changed, or that the page was asleep. */

/** Time in ms between two looks at the clock, and how much later than that a look means that the machine has slept. */
const LOOK = 2000;
const LATE = 3000;

/**
 * Calls `wake` at each sign, for as long as the page lives and only while it is visible.
 * @param {Window} window
 * @param {() => void} wake
 * @param {() => number} [clock] - ms since 1970.
 */
export function watchSigns(window, wake, clock = Date.now) {
  const { document } = window;
  const sign = () => {
    if (!document.hidden) wake();
  };
  window.addEventListener("online", sign);
  window.addEventListener("pageshow", sign);
  document.addEventListener("visibilitychange", sign);
  let last = clock();
  const look = () => {
    const now = clock();
    // The timers of a hidden page are late by themselves.
    if (now - last > LOOK + LATE) sign();
    last = now;
  };
  window.setInterval(look, LOOK);
}
