/** What a reader has chosen for all sessions, such as the wrapping of lines: the browser keeps it. */
import { useEffect, useState } from "../vendor/standalone.module.js";

/** Parts of the page that follow a choice. @type {Set<(name: string, value: string) => void>} */
const followers = new Set();

/** A choice and a function that changes it, everywhere at once. Values are strings. */
export function usePreference(name, byDefault) {
  const [value, setValue] = useState(() => read(name) ?? byDefault);
  useEffect(() => {
    const follow = (changed, next) => changed === name && setValue(next);
    followers.add(follow);
    return () => followers.delete(follow);
  }, [name]);
  const choose = (next) => {
    write(name, next);
    for (const follow of followers) follow(name, next);
  };
  return [value, choose];
}

function read(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null; // The browser keeps nothing for this page.
  }
}

function write(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // The choice holds until the page is closed.
  }
}
