#!/bin/bash
# prove.sh RUN_ID STEPS KILL_AT SECONDS: our entrypoint with SkyRL on this machine's GPU: an attempt that is killed with SIGKILL
# once checkpoint KILL_AT is the newest, a second one that resumes, and what both left. Needs SITE (SkyRL's packages) and
# an S3 endpoint at AWS_ENDPOINT_URL; prints seconds since its start.
set -u
run=$1 steps=$2 kill_at=$3 limit=$4
began=$(date +%s)
say() { echo "[+$(($(date +%s) - began))] $*"; }
shared=${NIGHTSHIFT_SHARED:?} bucket=${BUCKET:-proof} work=${WORK:-/tmp/proof}
mkdir -p "$work" "$shared/runs"
python3 bench/gpu/spec.py "$work/$run.json" "$run" --model /shared/models/tiny --steps "$steps" ${SPEC_OPTIONS:-}
python3 - "$bucket" "$run" "$work/$run.json" <<'P'
import sys, boto3
sys.path[:0] = ["functions", "."]
from nightshift.contract import RunKeys, RunSpec
bucket, run, path = sys.argv[1:]
s3 = boto3.client("s3")
if bucket not in [b["Name"] for b in s3.list_buckets()["Buckets"]]:
    s3.create_bucket(Bucket=bucket)
s3.put_object(Bucket=bucket, Key=RunKeys(run).spec, Body=RunSpec.model_validate_json(open(path).read()).model_dump_json().encode())
P
say "spec is in the bucket"
pointer="$shared/runs/$run/ckpts/latest_ckpt_global_step.txt"
first=1 floor=0
date +%s > "$work/$run.begun"
if [ "$kill_at" -gt 0 ]; then
    python3 -m training_job run --bucket "$bucket" --run-id "$run" --attempt 1 --floor 0 > "$work/$run-a1.log" 2>&1 &
    pid=$!
    while sleep 0.5; do
        kill -0 $pid 2>/dev/null || { wait $pid; say "attempt 1 ended by itself: $?"; break; }
        floor=$(cat "$pointer" 2>/dev/null || echo 0)
        [ "${floor:-0}" -ge "$kill_at" ] && { sleep 1.5; say "SIGKILL at checkpoint $floor"; kill -9 $pid; wait $pid 2>/dev/null; break; }
        [ $(($(date +%s) - began)) -gt "$limit" ] && { say "limit"; kill -9 $pid; break; }
    done
    first=2
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        left=$(ps -eo cmd | grep -c '^[r]ay::') || true
        [ "$left" -le "${RAY_IDLE:-0}" ] && break
        sleep 1
    done
    date +%s >> "$work/$run.begun"
    say "Ray processes left: $left; GPU memory: $(nvidia-smi --query-gpu=memory.used --format=csv,noheader | head -1)"
fi
timeout $((limit - $(date +%s) + began)) python3 -m training_job run --bucket "$bucket" --run-id "$run" --attempt $first --floor "$floor" > "$work/$run-a$first.log" 2>&1
say "attempt $first: exit $?"
