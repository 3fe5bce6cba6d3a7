// The provider `clawctl`: its requests extend one another, and name their session and kind.

const KEPT_SESSIONS = 1000;

/** What each session's last run said of itself, oldest first; bounded, because a gateway runs for months. */
class Runs {
  #bySession = new Map();

  note(context) {
    if (!context?.sessionId) return;
    this.#bySession.delete(context.sessionId);
    this.#bySession.set(context.sessionId, context.trigger);
    if (this.#bySession.size > KEPT_SESSIONS) this.#bySession.delete(this.#bySession.keys().next().value);
  }

  trigger(sessionId) {
    return this.#bySession.get(sessionId);
  }
}

/** `user`, `heartbeat`, `memory`, `cron` …; `unknown` where OpenClaw does not tell, and clawctl then decides by its own rules. */
export function headersOf(sessionId, trigger) {
  const headers = { "X-Turn-Type": trigger ?? "unknown" };
  if (sessionId) headers["X-Session-Id"] = sessionId;
  return headers;
}

export default {
  id: "clawctl",
  name: "clawctl",
  register(api) {
    const runs = new Runs();
    api.on("before_prompt_build", (_event, context) => {
      runs.note(context);
      return {};
    });
    api.registerProvider({
      id: "clawctl",
      label: "clawctl",
      auth: [],
      // Without `appendOnlyRuntimeContext` each request drops the last message of the one before it, so that no request extends
      // another, and each is trained (and computed) as a sequence of its own.
      buildReplayPolicy: () => ({
        sanitizeMode: "images-only",
        sanitizeToolCallIds: false,
        appendOnlyRuntimeContext: true,
        dropReasoningFromHistory: false,
        validateAnthropicTurns: false,
        validateGeminiTurns: false,
        applyAssistantFirstOrderingFix: false,
        allowSyntheticToolResults: true,
      }),
      wrapStreamFn: ({ streamFn }) =>
        streamFn &&
        ((model, context, options) =>
          streamFn(model, context, {
            ...options,
            headers: { ...options?.headers, ...headersOf(options?.sessionId, runs.trigger(options?.sessionId)) },
          })),
    });
  },
};
