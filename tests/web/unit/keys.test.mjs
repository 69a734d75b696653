import assert from "node:assert/strict";
import { test } from "node:test";

import { isComposing } from "../../../acp_gateway/web/app/views/parts/keys.js";

test("a key of an input method is told by the composition, or by its code after that", () => {
  assert.equal(isComposing({ isComposing: true, keyCode: 13 }), true);
  assert.equal(isComposing({ isComposing: false, keyCode: 229 }), true);
  assert.equal(isComposing({ isComposing: false, keyCode: 13 }), false);
});
