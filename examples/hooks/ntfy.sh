#!/bin/sh
# A hook of acp-gateway: tells a phone by ntfy that an agent waits for a decision, or that a long turn has ended.
# A touch on the notification opens the question in the page. docs/hooks.md explains it.
#
# Needs curl and jq, and a topic that is hard to guess, in a file of mode 0600: ~/.config/acp-gateway/ntfy-topic
set -eu
notification=$(jq --compact-output --rawfile topic "$HOME/.config/acp-gateway/ntfy-topic" '
  select(.connected == 0)
  | (if .link then {click: .link} else {} end) as $click
  | if .event == "permission_waiting" then
      {title: "\(.agent) waits for you", message: (.tool.title // .method), priority: 4}
    elif .event == "turn_end" and .seconds >= 60 then
      {title: "\(.agent) is done", message: "\(.title // .sessionId): \(.stopReason // "failed")"}
    else
      empty
    end
  | . + $click + {topic: ($topic | rtrimstr("\n"))}')
[ -n "$notification" ] || exit 0
printf '%s' "$notification" | curl --silent --show-error --fail --max-time 20 --output /dev/null --data-binary @- https://ntfy.sh/
