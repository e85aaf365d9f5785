/* The version of everything that is built together. */
#ifndef NSV_SHM_VERSION_H
#define NSV_SHM_VERSION_H

#define NSV_VERSION "0.1.0"

#endif
