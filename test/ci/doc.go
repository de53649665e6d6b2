// Package ci tests what users copy into their CI systems: the GitHub Action, the GitLab job and the canary.
package ci
