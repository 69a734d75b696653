/**
 * Keeps the page as high as what can be seen of it.
 *
 * Where a browser lays its keyboard over the page instead of making it smaller, as Safari on phones does, the composer
 * would be behind the keyboard.
 */

/** Zoom from which the visible part says nothing about a keyboard. */
const ZOOMED = 1.05;

/** Follow the visible part of a window. `window` is a parameter for tests. */
export function followViewport({ visualViewport, document, scrollTo }) {
  if (!visualViewport) return;
  const follow = () => {
    if (visualViewport.scale > ZOOMED) return;
    document.documentElement.style.setProperty("--visible-height", `${visualViewport.height}px`);
    // The browser has scrolled the page to show the field, which is in view now anyway.
    if (visualViewport.offsetTop > 0) scrollTo(0, 0);
  };
  visualViewport.addEventListener("resize", follow);
  visualViewport.addEventListener("scroll", follow);
  follow();
}
