/** What a reader has chosen for all sessions, such as the wrapping of lines: the browser keeps it. */
import { useEffect, useState } from "../../../vendor/hooks.js";
import { keep, read, storageOf } from "../../state/kept.js";

const lasting = storageOf(() => localStorage);

/** Parts of the page that follow a choice. @type {Set<(name: string, value: string) => void>} */
const followers = new Set();

/** A choice and a function that changes it, everywhere at once. Values are strings. */
export function usePreference(name, byDefault) {
  const [value, setValue] = useState(() => read(lasting, name) ?? byDefault);
  useEffect(() => {
    const follow = (changed, next) => changed === name && setValue(next);
    followers.add(follow);
    return () => followers.delete(follow);
  }, [name]);
  const choose = (next) => {
    keep(lasting, name, next);
    for (const follow of followers) follow(name, next);
  };
  return [value, choose];
}
