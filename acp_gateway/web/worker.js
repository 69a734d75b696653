/**
 * Opens the question of a notification that was tapped. Browsers on phones show notifications of a service worker only.
 *
 * It keeps nothing and answers no request of the page.
 */

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(show(event.notification.data.hash));
});

/** Bring a page that is open to the front and tell it the fragment to show; open one where there is none. */
async function show(hash) {
  const pages = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const page = pages.find((each) => each.url.startsWith(self.registration.scope));
  if (page === undefined) return self.clients.openWindow(new URL(hash, self.registration.scope).href);
  page.postMessage({ hash });
  return page.focus();
}
