/** Parts of the page whose modules come when they are shown for the first time. */
import { useEffect, useState } from "../../../vendor/hooks.js";
import { html } from "./html.js";

/** `onFailure` is called where a module does not come: the connection is lost, or the gateway has another version. */
export const parts = { onFailure() {} };

/** The component of this name in the module that `load` imports. Nothing is shown until it is there. */
export function later(load, name) {
  let Part = null;
  return function Later(properties) {
    const [, setCome] = useState(false);
    useEffect(() => {
      const come = (module) => {
        Part = module[name];
        setCome(true);
      };
      const failed = () => {
        properties.onClose?.();
        parts.onFailure();
      };
      if (Part === null) load().then(come, failed);
    }, []);
    return Part && html`<${Part} ...${properties} />`;
  };
}
