/** Keys that are not for the page. Pure. */

/**
 * True for a key of an input method, whose Enter takes what was composed. In Safari the composition has ended before that
 * key comes; its code tells it.
 *
 * @param {{isComposing: boolean, keyCode: number}} event
 */
export function isComposing(event) {
  return event.isComposing || event.keyCode === 229;
}
