/** The calls of story.py, with the types that openapi-typescript makes of the OpenAPI document. */
import createClient from "openapi-fetch";
import type { components, paths } from "./api";

type Schemas = components["schemas"];

const client = createClient<paths>({ baseUrl: "http://127.0.0.1:8181", headers: { Authorization: "Bearer pdp_..." } });

export async function run(): Promise<string> {
  const order: Schemas["TokenOrder"] = { name: "agent", scopes: ["decide"], claims: { sub: "officer-123" } };
  const token = await client.POST("/v1/tokens", { body: order });
  const secret: string | undefined = token.data?.token;

  const tools = await client.GET("/v1/tools", { params: { query: { format: "plain" } } });
  const names: string[] = tools.data?.tools.map((tool) => tool.name) ?? [];

  const decision = await client.POST("/access/v1/evaluation", {
    body: {
      subject: { type: "user", id: "officer-123" },
      action: { name: "initiate_wire" },
      resource: { type: "wire_payment", id: "bene-acme-441" },
      context: { arguments: { amount: 20000 } },
    },
  });
  const permitted: boolean = decision.data?.decision ?? false;

  const call: Schemas["ProposedCall"] = {
    proposal: { tool: "initiate_wire", arguments: { amount: 47500 } },
    session: { idempotency_key: "idm-4a2b", run_id: "run-1" },
  };
  const proposed = await client.POST("/v1/proposals", { body: call });
  if (proposed.error) {
    return `${proposed.error.error.code}: ${proposed.error.error.hint ?? ""}`;
  }
  if ("plan" in proposed.data) {
    return proposed.data.steps.map((step) => step.name).join(", ");
  }
  const answer: Schemas["ProposalAnswer"] = proposed.data;
  if (answer.verdict === "STEP_UP" && answer.approval) {
    const waiting = await client.GET("/v1/approvals", { params: { query: { state: "pending", limit: 10 } } });
    const people: Schemas["PersonBody"][] = waiting.data?.approvals.flatMap((each) => each.requesters) ?? [];
    const path = { approval_id: answer.approval.id };
    const granted = await client.POST("/v1/approvals/{approval_id}/grant", { params: { path } });
    return `${granted.data?.state} for ${people.map((person) => person.sub).join(", ")}`;
  }
  const done = await client.POST("/v1/proposals/{call_id}/result", {
    params: { path: { call_id: answer.id } },
    body: { execution: { result: { wire_id: "wire-1" } } },
  });
  const audit = await client.GET("/v1/audit", { params: { query: { after: -1 } } });
  await client.POST("/v1/runs/{run_id}/end", { params: { path: { run_id: "run-1" } } });
  return [secret, ...names, permitted, done.data?.replayed, audit.data?.events[0]?.hash].join(" ");
}
