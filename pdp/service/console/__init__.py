"""The console: pages that show approvals, decisions and their reasons, and on which people decide on approvals.

* page: the Jinja2 environment, answers, error pages, and the route class that checks sessions and forms
* visible: filters for templates: texts with marked code points, durations
* routes: all routes, static files and the help page
* sign_in/: sign-in and sign-out
* pages/: the pages
* texts/: every text that people read

Templates are in `templates/`, the style sheet and the script in `static/`.
"""
