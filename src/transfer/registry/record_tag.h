// Records that only a process with the cluster's key can make: a tag, HMAC-SHA256 of the record's text, is one of its facts.
//
// The tag says nothing of time: an old record can be put back. It leads to the addresses of a peer of the cluster, where
// the links prove the key.
#pragma once

#include "os/secret_key.h"
#include "transfer/registry/peer_record.h"

namespace cachalot::transfer {

// @errors kInvalidArgument: there is no room for it; kInternal
Status add_tag(const os::SecretKey& key, PeerRecord& record);
// Removes it. @errors kPermission: there is none, or a wrong one
Status check_tag(const os::SecretKey& key, PeerRecord& record);

}  // namespace cachalot::transfer
