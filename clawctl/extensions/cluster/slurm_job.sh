#!/bin/bash
{directives}

{environment}
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1
srun --cpus-per-task={cpus} --kill-on-bad-exit=1 bash -c {command} &
wait $!
code=$?
while [ $code -gt 128 ] && kill -0 $! 2>/dev/null; do wait $!; code=$?; done
case $code in 0|2) exit $code ;; esac
[ "$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %T)" != RUNNING ] || scontrol requeue "$SLURM_JOB_ID"
exit $code
