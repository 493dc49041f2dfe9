// The service manager that started this process and waits for a word of it: systemd, for a unit of Type=notify.
#pragma once

#include <cachalot/result.h>

namespace cachalot::apps {

// Says "READY=1" to the socket that NOTIFY_SOCKET names, a path or "@" and an abstract name. Without it does nothing.
// @errors kInvalidArgument: the name is too long for a socket, or begins with neither "/" nor "@"; kNotFound, kPermission, kIo
Status tell_ready();

}  // namespace cachalot::apps
