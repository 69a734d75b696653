/** Frames of a window. */

/**
 * Returns the `frame` of a window: before its next frame, or after a second where frames rest because the page is
 * hidden.
 * @param {Window} window
 * @returns {(callback: () => void) => void}
 */
export function frameOf(window) {
  return (callback) => {
    let called = false;
    const once = () => {
      if (called) return;
      called = true;
      window.clearTimeout(timer);
      callback();
    };
    const timer = window.setTimeout(once, 1000);
    window.requestAnimationFrame(once);
  };
}
