/** Registers the service worker, which opens the page without the gateway, and by which phones show notifications. */

/**
 * Register it. Returns a promise of its registration, once it is active; of null where there are no service workers.
 * @param {any} window
 */
export async function registerWorker({ navigator, document, trustedTypes }) {
  if (!navigator?.serviceWorker) return null;
  const url = new URL("./worker.js", document.baseURI).href;
  // The page's policy demands an address that is marked as trusted. This marks no other one.
  const policy = trustedTypes?.createPolicy("worker", { createScriptURL: () => url });
  await navigator.serviceWorker.register(policy ? policy.createScriptURL("") : url);
  return navigator.serviceWorker.ready;
}
