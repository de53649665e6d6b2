// Package ci tests what users copy into their CI systems: the GitHub Action, the GitLab job and the canary. The release
// that the tests install is one for Linux, so they run only there.
package ci
