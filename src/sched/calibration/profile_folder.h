// Reads a profile from a folder: meta.yaml, dense.csv, attention.csv, per_sequence.csv and skew_fit.csv, each plain or
// as .csv.gz.
//
// The format is LLMServingSim's profiler's (github.com/casys-kaist/LLMServingSim). Its meta.yaml describes all degrees
// of tensor parallelism together; the folder's name says which one it has: "rtxpro6000-llama-3.1-8b-tp1".
#pragma once

#include <cachalot/result.h>

#include <string>

#include "sched/timing/profile_tables.h"

namespace cachalot::sched {

// @errors kInvalidArgument: no such folder or file; the name does not end in -tpN; kBadInput: a file's content, with
//         its line; kIo
Result<ProfileTables> read_profile_folder(const std::string& folder);

}  // namespace cachalot::sched
