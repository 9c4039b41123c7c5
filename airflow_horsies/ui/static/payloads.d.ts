// Written by 'make payloads' from ui/payloads.py. Do not edit.

export interface Attempt {
  attempt: number;
  outcome: string;
  will_retry: boolean;
  started_at: string;
  finished_at: string | null;
  duration_seconds: number | null;
  error_code: string | null;
  error_message: string | null;
  failed_reason: string | null;
  worker_id: string | null;
  hostname: string | null;
  pid: number | null;
  metrics: Record<string, unknown>;
  error_url: string | null;
}

export interface Bucket {
  start: string;
  ended: number;
  failed: number;
  p50_seconds: number | null;
  p95_seconds: number | null;
}

export interface Callback {
  life: number;
  number: number;
  state: CallbackState;
  opened_at: string;
  expires_at: string;
  heartbeats: number;
  heartbeat_at: string | null;
  closed_at: string | null;
  answered_from: string | null;
  value: string | null;
}

export type CallbackState = "OPEN" | "COMPLETED" | "FAILED" | "EXPIRED" | "VOID";

export type CancelOutcome = "CANCELLED" | "ALREADY_CANCELLED" | "ALREADY_FINISHED" | "STILL_WANTED" | "REQUESTED";

export interface Cancelled {
  outcomes: Partial<Record<CancelOutcome, number>>;
  past_retention: number;
}

export interface EmptyInstance {
  dag_id: string;
  run_id: string;
  task_id: string;
  map_index: number;
  now: string;
  can_act: boolean;
  tries: Try[];
  positions: number;
  submissions: Submission[];
}

export interface Event {
  at: string;
  what:
    | "sent"
    | "started"
    | "parked"
    | "failed, will be retried"
    | "pending"
    | "claimed"
    | "running"
    | "completed"
    | "failed"
    | "cancelled"
    | "expired";
  task_name: string;
  queue: string;
  error_code: string | null;
  instance: TaskInstanceKey | null;
  count: number;
}

export interface Failure {
  dag_id: string;
  run_id: string;
  task_id: string;
  map_index: number;
  items: number;
  task_name: string;
  queue: string;
  state: TaskState;
  error_code: string | null;
  error_message: string | null;
  attempts: number;
  hostname: string | null;
  finished_at: string | null;
  exists: boolean;
  airflow_state: string | null;
  can_act: boolean;
  error_url: string | null;
}

export interface Failures {
  now: string;
  failures: Failure[];
  searched_to: string | null;
  next: NextFailures | null;
}

export interface Instance {
  dag_id: string;
  run_id: string;
  task_id: string;
  map_index: number;
  now: string;
  can_act: boolean;
  tries: Try[];
  positions: number;
  counts: Partial<Record<TaskState, number>>;
  past_retention: number;
  position: number;
  submissions: Submission[];
  log: Log;
  moments: Moments;
}

export interface Item {
  position: number;
  life: number;
  round: number;
  state: TaskState | null;
  attempts: number | null;
  started_at: string | null;
  finished_at: string | null;
  duration: number | null;
  error_code: string | null;
  error_message: string | null;
  hostname: string | null;
  error_url: string | null;
}

export interface Items {
  total: number;
  items: Item[];
}

export interface KnownEntry {
  kind: KnownKind;
  name: string;
  doc: string | null;
  queue: string | null;
  served_queues: string[];
  parameters: KnownParameter[];
  takes_others: boolean;
  workers: number;
  hosts: string[];
  releases: string[];
  seen_at: string;
  is_live: boolean;
  is_disputed: boolean;
}

export type KnownKind = "task" | "workflow";

export interface KnownParameter {
  name: string;
  type: string;
  is_required: boolean;
  default: string | null;
  description: string | null;
}

export interface LineValues {
  attempt: number;
  number: number;
  logged_at: string;
  level: string;
  text: string;
}

export interface Log {
  life: number;
  round: number;
  may_read: boolean;
  lines: LineValues[];
  more: boolean;
}

export interface Moments {
  signals: Signal[];
  waits: Wait[];
  callbacks: Callback[];
  pauses: Pause[];
}

export interface NextFailures {
  at: string;
  id: string;
}

export interface NodeDetail {
  now: string;
  workflow_id: string;
  index: number;
  name: string;
  task_name: string;
  horsies_task_id: string | null;
  submitted_at: string | null;
  task: Task | null;
  attempts: Attempt[];
  progress: ProgressValues | null;
  log: NodeLog;
}

export interface NodeLog {
  may_read: boolean;
  lines: LineValues[];
  more: boolean;
}

export interface Overview {
  now: string;
  queues: Queue[];
  workers: Worker[];
  recent_tasks: number;
  recent_is_cut: boolean;
  bucket_seconds: number;
  buckets: Bucket[];
  activity: Event[];
  can_monitor: boolean;
  reports: Report[];
  can_read_reference: boolean;
}

export interface Pause {
  life: number;
  round: number;
  workflow_id: string;
  name: string;
  start: string;
  is_inside: boolean;
}

export interface Problem {
  status: number;
  title: string;
  detail: string;
}

export interface ProgressValues {
  attempt: number;
  done: number;
  total: number | null;
  fraction: number | null;
  stage: string | null;
  updated_at: string | null;
}

export interface Queue {
  queue: string;
  ready: number;
  delayed: number;
  claimed: number;
  running: number;
  oldest_ready_at: string | null;
  served_by: number;
  per_minute: number;
}

export interface Reference {
  now: string;
  recorded: number;
  total: number;
  offset: number;
  entries: KnownEntry[];
}

export interface Repair {
  id: number;
  life: number;
  items: number | null;
}

export interface Report {
  name: string;
  start: string;
  end: string;
  made_at: string | null;
  url: string;
}

export interface Run {
  dag_id: string;
  run_id: string;
  now: string;
  total: number;
  is_cut: boolean;
  rows: RunRow[];
}

export interface RunRow {
  task_id: string;
  map_index: number;
  task_name: string;
  queue: string;
  items: number;
  state: TaskState | null;
  counts: Partial<Record<TaskState, number>>;
  error_code: string | null;
  error_message: string | null;
  submitted_at: string;
  segments: RunSegment[];
  error_url: string | null;
}

export interface RunSegment {
  kind: "waiting" | "claimed" | "running" | "backing off" | "parked";
  start: string;
  end: string | null;
  outcome: string | null;
}

export interface Segment {
  kind: "waiting" | "claimed" | "running" | "backing off" | "parked";
  start: string;
  end: string | null;
  outcome: string | null;
  attempt: number | null;
}

export interface Signal {
  life: number;
  round: number;
  name: string;
  sent_at: string;
  sent_by: string | null;
  received_at: string | null;
  received_attempt: number | null;
  value: string | null;
}

export interface SignalSent {
  is_new: boolean;
  resumed: number;
}

export interface Submission {
  horsies_task_id: string;
  task_name: string;
  queue: string;
  position: number;
  life: number;
  round: number;
  try_number: number;
  submitted_at: string;
  good_until: string | null;
  task: Task | null;
  attempts: Attempt[];
  segments: Segment[];
  progress: ProgressValues | null;
  number: number | null;
  kind: WorkKind;
  workflow_state: WorkflowState | null;
}

export interface Task {
  state: TaskState;
  queue: string;
  priority: number;
  enqueued_at: string;
  claimed_at: string | null;
  started_at: string | null;
  finished_at: string | null;
  next_retry_at: string | null;
  good_until: string | null;
  retry_count: number;
  max_retries: number;
  worker_id: string | null;
  hostname: string | null;
  pid: number | null;
  error_code: string | null;
  failed_reason: string | null;
  error_url: string | null;
}

export interface TaskInstanceKey {
  dag_id: string;
  run_id: string;
  task_id: string;
  map_index: number;
}

export type TaskState = "PENDING" | "CLAIMED" | "RUNNING" | "COMPLETED" | "FAILED" | "CANCELLED" | "EXPIRED";

export interface Try {
  try_number: number;
  state: string | null;
  started_at: string | null;
  ended_at: string | null;
}

export interface Values {
  kwargs: string | null;
  kwargs_note: string | null;
  result: string | null;
  error_data: string | null;
  traceback: string | null;
}

export interface Wait {
  life: number;
  round: number;
  horsies_task_id: string;
  name: string | null;
  attempt: number;
  times: number;
  start: string;
  end: string | null;
  due_at: string | null;
}

export interface Withdrawn {
  withdrawn: boolean;
}

export type WorkKind = "TASK" | "WORKFLOW";

export interface Worker {
  worker_id: string;
  hostname: string;
  pid: number;
  queues: string[];
  processes: number;
  tasks_running: number;
  tasks_claimed: number;
  started_at: string;
  seen_at: string;
  alive: boolean;
  memory_mb: number | null;
  cpu_percent: number | null;
}

export interface Workflow {
  now: string;
  horsies_workflow_id: string;
  life: number;
  round: number;
  name: string;
  queue: string;
  state: WorkflowState;
  is_paused: boolean;
  is_cut: boolean;
  limit: number;
  actions: WorkflowAction[];
  parts: WorkflowPart[];
  nodes: WorkflowNode[];
}

export type WorkflowAction = "pause" | "resume" | "retry" | "signal" | "cancel";

export interface WorkflowChange {
  workflows: number;
  retried: string[];
  left: string[];
  at_once: boolean;
}

export interface WorkflowNode {
  workflow_id: string;
  index: number;
  name: string;
  task_name: string;
  state: string;
  queue: string;
  is_workflow: boolean;
  inner: string | null;
  after: string[];
  join: string;
  min_success: number | null;
  allow_failed: boolean;
  is_output: boolean;
  has_task: boolean;
  started_at: string | null;
  finished_at: string | null;
  attempts: number | null;
  error_code: string | null;
  error_message: string | null;
  error_url: string | null;
  waits_for: string | null;
  due_at: string | null;
}

export interface WorkflowPart {
  id: string;
  name: string;
  state: WorkflowState;
  parent: string | null;
  parent_index: number | null;
  is_wrapper: boolean;
  started_at: string | null;
  finished_at: string | null;
  error_code: string | null;
  error_message: string | null;
  error_url: string | null;
}

export type WorkflowState = "PENDING" | "RUNNING" | "PAUSED" | "COMPLETED" | "FAILED" | "CANCELLED" | "EXPIRED";
