/** Small hooks and components that several parts of the page share. */
import { Component, createContext } from "../../../vendor/preact.js";
import { useContext, useEffect, useRef, useState } from "../../../vendor/hooks.js";

/** Whether a media query matches, now and later. */
export function useMedia(query) {
  const [matches, setMatches] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const changed = () => setMatches(list.matches);
    changed();
    list.addEventListener("change", changed);
    return () => list.removeEventListener("change", changed);
  }, [query]);
  return matches;
}

/** Width of the page of a phone, up to which what has no room is elsewhere. */
export const NARROW = "(max-width: 719px)";

/** A device on whose keyboard Enter makes a new line, and which shows that keyboard only for a field. */
export const TOUCH = "(hover: none) and (pointer: coarse)";

/** The pane that a part of the page belongs to, as {isTwo, title, isUsed()}; null for what belongs to none. */
export const PaneOf = createContext(/** @type {{isTwo: boolean, title: string, isUsed: () => boolean}|null} */ (null));

/** Whether a component that appears may take the focus: its pane is in use, and no dialog or menu has it. */
export function useMayFocus() {
  const pane = useContext(PaneOf);
  return () => (pane === null || pane.isUsed()) && document.querySelector("dialog[open], [role=menu]") === null;
}

/** The name of a landmark, with the title of its session where two are side by side. */
export function useLabel(name) {
  return labelIn(useContext(PaneOf), name);
}

/** The same in the pane given. */
export function labelIn(pane, name) {
  return pane?.isTwo ? `${name}: ${pane.title}` : name;
}

/** The time in ms since 1970, renewed at an interval in ms, and whenever the interval changes. */
export function useNow(interval) {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), interval);
    return () => clearInterval(timer);
  }, [interval]);
  return now;
}

/** The one of two values that changed last; at first the first one, if there is one. */
export function useLatest(first, second) {
  const seen = useRef({ first, second, value: first ?? second });
  const { current } = seen;
  if (current.second !== second) current.value = second ?? first;
  if (current.first !== first) current.value = first ?? second;
  current.first = first;
  current.second = second;
  return current.value;
}

/** Call a function for an event of the document for as long as the component is there. */
export function useDocumentEvent(name, listener) {
  const latest = useRef(listener);
  latest.current = listener;
  useEffect(() => {
    const call = (event) => latest.current(event);
    document.addEventListener(name, call);
    return () => document.removeEventListener(name, call);
  }, [name]);
}

/** Whether an element takes what is typed. */
export function takesText(element) {
  return element instanceof HTMLElement && (element.isContentEditable || element.matches("input, textarea, select"));
}

/** A component that is rendered again only when one of its properties is another object. @abstract */
export class Pure extends Component {
  /** @param {any} properties @returns {any} */
  render(properties) {
    return properties.children;
  }

  shouldComponentUpdate(next) {
    const now = this.props;
    const names = new Set([...Object.keys(now), ...Object.keys(next)]);
    for (const name of names) if (now[name] !== next[name]) return true;
    return false;
  }
}

/** Shows `fallback` instead of its children after one of them has failed: strange data of an agent must not end the page. */
export class Boundary extends Component {
  componentDidCatch(error) {
    console.warn(error);
    this.setState({ failed: true });
  }

  render({ children, fallback = null }) {
    return this.state.failed ? fallback : children;
  }
}

/** Several class names as one, without those that are false. */
export function classes(...names) {
  return names.filter(Boolean).join(" ");
}
