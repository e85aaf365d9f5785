#ifndef NSV_DAEMON_VERSION_H
#define NSV_DAEMON_VERSION_H

#define NSV_VERSION "0.1.0"

#endif
